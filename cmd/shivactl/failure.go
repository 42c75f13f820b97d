package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"syscall"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/token"
	"github.com/shivad/shivad/shiva/unixsocket"
)

// Exit codes; the help names them.
const (
	exitOK          = 0
	exitRefused     = 1 // the server answered with a refusal, or doctor found a fault
	exitUsage       = 2 // wrong arguments or files
	exitUnreachable = 3 // no server, or no answer in time
)

// failure is an error for the user: what is wrong, and what to do next.
type failure struct {
	// Usage, file, unreachable, timeout, or the type of the server's error.
	Type    string `json:"type"`
	Message string `json:"message"`        // what is wrong
	Hint    string `json:"hint,omitempty"` // what to do next
	code    int
}

func (f *failure) Error() string { return f.Message }

// usage is a failure of the arguments of a command.
func usage(command, format string, args ...any) error {
	return &failure{"usage", fmt.Sprintf(format, args...), strings.TrimSpace("shivactl help " + command), exitUsage}
}

// unfit is a failure of a file: it cannot be read, or does not fit the model.
func unfit(hint, format string, args ...any) error {
	return &failure{"file", fmt.Sprintf(format, args...), hint, exitUsage}
}

// explain turns an error of a call to the server at addr into a failure with a hint. flag is the
// flag that sets the address.
func explain(err error, flag, addr string) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	if e, ok := errors.AsType[*shiva.RemoteError](err); ok {
		hint := remoteHints[e.Type]
		if e.Type == shiva.ContainerLost && !e.Retryable {
			hint = "repair the model for this input: the log of its container says more"
		}
		return &failure{e.Type, e.Message, hint, exitRefused}
	}
	if f := untrusted(err, addr); f != nil {
		return f
	}
	where := flag + " " + addr
	_, unix := unixsocket.Cut(addr)
	var dns *net.DNSError
	switch {
	case errors.Is(err, context.Canceled):
		return &failure{"canceled", "interrupted", "", exitUnreachable}
	case errors.Is(err, syscall.ECONNREFUSED), unix && errors.Is(err, fs.ErrNotExist):
		return &failure{"unreachable", "nothing listens at " + addr,
			"is shivad running? start it with: shivad    (if it runs elsewhere, say where with " + flag + " HOST:PORT)",
			exitUnreachable}
	case unix && errors.Is(err, fs.ErrPermission):
		return &failure{"unreachable", "no permission to connect to " + addr,
			"the server's socket_mode, socket_owner and socket_group say who may", exitUnreachable}
	case errors.As(err, &dns):
		return &failure{"unreachable", "no such host: " + dns.Name, "check " + where, exitUnreachable}
	case errors.Is(err, context.DeadlineExceeded):
		return &failure{"timeout", "no answer from " + addr + " in time",
			"shivactl status shows whether the server is busy, and its addresses; --timeout waits longer",
			exitUnreachable}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET),
		errors.Is(err, syscall.EPIPE):
		return &failure{"unreachable", addr + " closed the connection",
			"is that the right endpoint of a shivad? check " + where + "; does it speak TLS? then say tls://",
			exitUnreachable}
	}
	if _, ok := errors.AsType[*shiva.DecodeError](err); ok {
		return &failure{"protocol", addr + " does not answer in Shiva: " + err.Error(),
			"is that the TCP endpoint of a shivad? check " + where + "; does it speak TLS? then say tls://",
			exitUnreachable}
	}
	return &failure{"unreachable", err.Error(), "check " + where, exitUnreachable}
}

// remoteHints are hints about errors of the server, by type.
var remoteHints = map[string]string{
	shiva.Unauthenticated:  tokenHints[shiva.Unauthenticated],
	shiva.PermissionDenied: tokenHints[shiva.PermissionDenied],
	shiva.NotFound:         "shivactl models lists what is served; shivactl status says what is not, and why",
	shiva.Unavailable:      "no container serves it now; shivactl status shows which are connected",
	shiva.Overloaded:       "the server is at a limit; try again, or with fewer files at once: shivactl manual troubleshooting",
	shiva.Superseded:       "a newer frame of the stream came first; keep=all has every frame answered",
	shiva.DeadlineExceeded: "shivactl status shows what waits; --timeout waits longer: shivactl manual deadlines",
	shiva.ContainerFailed:  "the log of the model's container says more",
	shiva.ContainerLost:    "try again; shivactl status shows which containers are connected",
	shiva.Draining:         "the server is shutting down; try again when it is back",
	shiva.Internal:         "this is a bug of the server; its log says more",
}

// tokenHints are the remoteHints that hold for every door.
var tokenHints = map[string]string{
	shiva.Unauthenticated: "show a token of the server's: in $" + token.Env + ", or in a file that $" + token.FileEnv +
		" names: shivactl manual authentication",
	shiva.PermissionDenied: "shivactl whoami shows who you are to the server, and what you may",
}

// typeOf returns the type of error of an HTTP status; "" if several types have that status.
func typeOf(status int) string {
	return map[int]string{http.StatusNotFound: shiva.NotFound, http.StatusUnauthorized: shiva.Unauthenticated,
		http.StatusForbidden: shiva.PermissionDenied}[status]
}

// report prints an error and returns the exit code.
func (c *cli) report(err error) int {
	f, ok := errors.AsType[*failure](err)
	if !ok {
		f = &failure{Type: "internal", Message: err.Error(), code: exitRefused}
	}
	if f.Message == "" { // everything has been reported
		return f.code
	}
	if c.json {
		c.printJSON(map[string]any{"error": f})
		return f.code
	}
	fmt.Fprintln(c.stderr, "shivactl:", f.Message)
	if f.Hint != "" {
		fmt.Fprintln(c.stderr, "  ->", f.Hint)
	}
	return f.code
}

// printJSON prints a JSON document on one line: indented tensors would have a line for each number.
func (c *cli) printJSON(v any) error {
	e := json.NewEncoder(c.stdout)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
