package hosttest

// Fake comes next.
type Fake struct{ fakeHost }
type fakeHost interface{}
