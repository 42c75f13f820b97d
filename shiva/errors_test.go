package shiva_test

import (
	"io"
	"testing"

	"github.com/shivad/shivad/shiva"
)

// TestErrorMessage pins the order of the keys: the first two are the reference's.
func TestErrorMessage(t *testing.T) {
	e := shiva.RemoteError{Type: shiva.NotFound, Message: `no model "x"`, Code: 404, ID: `"7"`}
	m := shiva.ErrorMessage(&e)
	if want := `{"type":"NotFound","message":"no model \"x\"","code":404,"retryable":false,"id":"7"}`; m.Namespace != "!error" ||
		string(m.Metadata) != want {
		t.Errorf("%q %s, want %s", m.Namespace, m.Metadata, want)
	}
	if got := shiva.ParseError(m); *got != e {
		t.Errorf("comes back as %+v", *got)
	}
	e = shiva.RemoteError{Type: shiva.Overloaded, Code: 429, Retryable: true}
	if got, want := string(e.AppendMetadata([]byte("x"))),
		`x{"type":"Overloaded","message":"","code":429,"retryable":true}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	e = shiva.RemoteError{Type: shiva.Superseded, Code: 409, ID: "3", By: "18"}
	m = shiva.ErrorMessage(&e)
	if want := `{"type":"Superseded","message":"","code":409,"retryable":false,"id":3,"by":18}`; string(m.Metadata) !=
		want || *shiva.ParseError(m) != e {
		t.Errorf("%s comes back as %+v, want %s", m.Metadata, *shiva.ParseError(m), want)
	}
	if shiva.ParseError(&shiva.Message{Namespace: "error"}) != nil {
		t.Error("another namespace is taken for a report")
	}
}

// TestParseReferenceErrors: errors of the reference servers are parsed, with class name and text.
func TestParseReferenceErrors(t *testing.T) {
	want := map[string]shiva.RemoteError{
		"error_reply.bin":               {Type: "ValueError", Message: "boom"},
		"error_reply_keyerror.bin":      {Type: "KeyError", Message: "16"},
		"error_reply_empty_message.bin": {Type: "RuntimeError", Message: ""},
	}
	for _, g := range readGoldens(t) {
		w, ok := want[g.File]
		if !ok {
			continue
		}
		delete(want, g.File)
		r := decodeAll(t, shiva.DecoderConfig{}, g.bytes)
		if e := shiva.ParseError(r.messages[0]); e == nil || *e != w {
			t.Errorf("%s: %+v, want %+v", g.File, e, w)
		}
		r.release()
	}
	if len(want) > 0 {
		t.Errorf("no vectors for %v", want)
	}
}

func TestErrorsRead(t *testing.T) {
	for want, err := range map[string]error{
		"shiva: peer reports not found: no model \"a\"": &shiva.RemoteError{Type: shiva.NotFound,
			Message: "not found: no model \"a\""},
		"shiva: peer reports ValueError: not found: x": &shiva.RemoteError{Type: "ValueError",
			Message: "not found: x"},
		"shiva: peer reports NotFound: no model": &shiva.RemoteError{Type: shiva.NotFound,
			Message: "no model"},
		"shiva: no answer from h:1 to the request (it may have run): EOF": &shiva.CallError{Addr: "h:1",
			MayHaveRun: true, Err: io.EOF},
		"shiva: no answer from h:1 to the request (it was not sent): EOF": &shiva.CallError{Addr: "h:1", Err: io.EOF},
	} {
		if err.Error() != want {
			t.Errorf("%q, want %q", err, want)
		}
	}
}
