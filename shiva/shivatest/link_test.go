package shivatest

import (
	"io"
	"syscall"
	"testing"
	"testing/synctest"
)

// A link that is cut after some bytes delivers these and no more, a stalled one delivers the bytes
// it held back once resumed, and one closed with unread input loses the bytes in flight, if the
// network resets.
func TestFaultsOfLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := Net{Piece: 2, Resets: true}
		near, far := n.Pair("a", "b")
		near.CutAfter(3, -1)
		if k, err := near.Write([]byte("12345")); k != 3 || err == nil {
			t.Errorf("wrote %d, %v", k, err)
		}
		text, err := io.ReadAll(far)
		if string(text) != "123" {
			t.Errorf("read %q", text)
		}
		wantErr(t, "the end of what was cut", err, syscall.ECONNRESET)

		near, far = n.Pair("a", "b")
		near.Stall(true, false)
		_, _ = near.Write([]byte("12"))
		buf := make([]byte, 8)
		_, err = far.TryRead(buf)
		wantErr(t, "while it stands still", err, syscall.EAGAIN)
		near.Stall(false, false)
		if k, err := far.TryRead(buf); k != 2 || err != nil {
			t.Errorf("read %d, %v", k, err)
		}
		_, _ = far.Write([]byte("answer"))
		_, _ = near.Write([]byte("unread"))
		far.Close()
		_, err = near.Read(buf)
		wantErr(t, "what was closed unread", err, syscall.ECONNRESET)

		near, far = n.Pair("a", "b")
		n.Stall(true)
		_, _ = near.Write([]byte("12"))
		near.Close()
		n.Stall(false)
		if k, err := far.TryRead(buf); k != 2 || err != nil {
			t.Errorf("of what was closed while all stood still %d bytes came, %v", k, err)
		}
		if k, err := far.TryRead(buf); k != 0 || err != nil { // as read(2) reports an end
			t.Errorf("instead of its end: %d bytes, %v", k, err)
		}
	})
}
