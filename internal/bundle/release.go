package bundle

import "context"

// Release says where the public release sites are.
type Release struct{}

func (b *builder) chooseSource(context.Context) (source, error) { return &gomod{b: b}, nil }
