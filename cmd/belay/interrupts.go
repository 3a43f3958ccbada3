package main

import (
	"context"
	"sync"
)

// interrupts turns signals into a stop. At first a signal cancels the
// context; after graceful was called, the first one asks for a stop after the
// current step, and the second cancels.
type interrupts struct {
	mu       sync.Mutex
	cancel   context.CancelFunc
	stop     chan struct{}
	gracious func()
	stopped  bool
	hard     bool
}

func newInterrupts(cancel context.CancelFunc) *interrupts {
	return &interrupts{cancel: cancel, stop: make(chan struct{})}
}

// graceful switches to two-stage stops and gives the channel that the first signal closes. first is called then, to say so.
func (i *interrupts) graceful(first func()) <-chan struct{} {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.gracious = first
	return i.stop
}

func (i *interrupts) signal() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.gracious != nil && !i.stopped {
		i.stopped = true
		close(i.stop)
		i.gracious()
		return
	}
	i.hard = true
	i.cancel()
}

// cancelled says whether a signal cancelled the context.
func (i *interrupts) cancelled() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.hard
}
