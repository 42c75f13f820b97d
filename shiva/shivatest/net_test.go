package shivatest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// pair returns both ends of a connection.
func pair(t *testing.T, n *Net) (near, far net.Conn) {
	t.Helper()
	l, err := n.Listen("a:1")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn)
	go func() {
		c, err := l.Accept()
		if err != nil {
			t.Error(err)
		}
		accepted <- c
	}()
	near, err = n.Dial(t.Context(), "tcp", "a:1")
	if err != nil {
		t.Fatal(err)
	}
	return near, <-accepted
}

func wantErr(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// TestConn: bytes are transferred, writers wait for readers, and the end comes after the bytes
// before it.
func TestConn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n Net
		near, far := pair(t, &n)
		sent := bytes.Repeat([]byte("0123456789"), 50_000)
		wrote := false
		go func() {
			if k, err := near.Write(sent); k != len(sent) || err != nil {
				t.Errorf("wrote %d, %v", k, err)
			}
			wrote = true
			near.Close()
		}()
		synctest.Wait()
		if wrote {
			t.Error("a writer does not wait for its reader")
		}
		got, err := io.ReadAll(far)
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("read %d bytes of %d, %v", len(got), len(sent), err)
		}
		_, err = near.Read(make([]byte, 1))
		wantErr(t, "read of a closed end", err, net.ErrClosed)
		_, err = near.Write([]byte{1})
		wantErr(t, "write to a closed end", err, net.ErrClosed)
		_, err = far.Write([]byte{1})
		wantErr(t, "write to an end whose other is closed", err, syscall.EPIPE)
	})
}

func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n Net
		near, far := pair(t, &n)
		defer near.Close()
		defer far.Close()
		start := time.Now()
		_ = near.SetReadDeadline(start.Add(time.Hour))
		_ = near.SetReadDeadline(start.Add(time.Second))
		_, err := near.Read(make([]byte, 1))
		if wantErr(t, "read", err, os.ErrDeadlineExceeded); time.Since(start) != time.Second {
			t.Errorf("the deadline passed after %v", time.Since(start))
		}
		_ = near.SetDeadline(time.Time{})
		go func() {
			time.Sleep(time.Second)
			_, _ = far.Write([]byte{1})
		}()
		if _, err := near.Read(make([]byte, 1)); err != nil {
			t.Error(err)
		}
		_ = near.SetWriteDeadline(time.Now().Add(time.Second))
		k, err := near.Write(make([]byte, 2*pipeBytes))
		if wantErr(t, "write", err, os.ErrDeadlineExceeded); k != pipeBytes {
			t.Errorf("wrote %d bytes before the deadline, want %d", k, pipeBytes)
		}
		_ = near.SetDeadline(time.Now().Add(-time.Second))
		_, err = near.Read(make([]byte, 1))
		wantErr(t, "read after a deadline that was past when it was set", err, os.ErrDeadlineExceeded)
	})
}

// TestCut: both ends notice at once, and bytes in flight are lost.
func TestCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n Net
		near, far := pair(t, &n)
		if _, err := near.Write([]byte("lost")); err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() {
			_, err := near.Read(make([]byte, 1))
			done <- err
		}()
		synctest.Wait()
		n.Cut()
		wantErr(t, "read in progress", <-done, syscall.ECONNRESET)
		_, err := far.Read(make([]byte, 10))
		wantErr(t, "read", err, syscall.ECONNRESET)
		_, err = far.Write([]byte{1})
		wantErr(t, "write", err, syscall.ECONNRESET)
		near.Close()
		_, err = near.Read(make([]byte, 1))
		wantErr(t, "read after close", err, net.ErrClosed)
	})
}

func TestListen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n Net
		_, err := n.Dial(t.Context(), "tcp", "a:1")
		wantErr(t, "nobody listens", err, syscall.ECONNREFUSED)
		l, err := n.Listen("a:1")
		if err != nil {
			t.Fatal(err)
		}
		_, err = n.Listen("a:1")
		wantErr(t, "listening twice", err, syscall.EADDRINUSE)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = n.Dial(ctx, "tcp", "a:1")
		wantErr(t, "nobody accepts", err, context.DeadlineExceeded)
		l.Close()
		l.Close()
		_, err = l.Accept()
		wantErr(t, "accept after close", err, net.ErrClosed)
		if l, err = n.Listen("a:1"); err != nil {
			t.Errorf("listening again: %v", err)
		}
		l.Close()
	})
}
