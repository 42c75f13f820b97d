//go:build !linux

package zmtp

import (
	"errors"
	"net"
	"syscall"
)

// Outside Linux the drain goroutine writes every message, with blocking calls.
type vector struct{}

func rawConn(net.Conn) syscall.RawConn { return nil }

func (vector) fill([]*Outgoing)           {}
func (vector) write(uintptr) (int, error) { return 0, errors.ErrUnsupported }
func (vector) clear()                     {}

func unsent(uintptr) int { return 0 }
