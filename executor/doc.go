// Package executor carries a plan out on a live cluster, step by step, and
// proves every step before the next one begins.
//
// The loop is short. For each step it asks the step's handler how far the
// cluster is (Probe), writes the intent to the journal, lets the handler act
// (Apply), waits until the handler's conditions hold (Verify) and writes the
// outcome. Everything else follows from four rules:
//
//   - The journal says what was tried, the cluster says what is true; where they
//     differ, the cluster is right. A step with an intent and no outcome is
//     judged by Probe alone, and a done step whose effect must still hold is looked at again.
//   - Apply starts from NotStarted and from Partial alike, so that it may be cut
//     off anywhere. Long work on a machine runs in a named systemd unit that
//     outlives belay: who comes back finds the unit and waits for it.
//   - Newness before health. A condition first proves that the new thing is what runs (a process's own
//     version, an apiserver asked directly), and then that it is healthy.
//   - A step that fails ends the run. No later step is begun.
package executor
