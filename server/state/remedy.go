package state

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	bbolterrors "go.etcd.io/bbolt/errors"
)

// A remedy advises an operator whose store cannot be opened. The first remedy whose text occurs in
// the error applies.
type remedy struct{ text, advice string }

// redisRemedies recognizes the errors of Redis and of its client library by their texts: neither
// has codes.
var redisRemedies = []remedy{
	{"WRONGPASS", "check user and password in state.at"},
	{"invalid username-password", "check user and password in state.at"},
	{"NOAUTH", "this Redis wants a password: redis://user:password@host:port/db"},
	{"without any password configured", "this Redis has no password: leave it out of state.at"},
	{"NOPERM", "give its user the commands, keys and channels that server/state/DESIGN.md lists"},
	{"DB index is out of range", "name a database that this Redis has: redis://host:port/db"},
	{"MOVED", "a Redis Cluster does not serve: name a single Redis"},
	{"CROSSSLOT", "a Redis Cluster does not serve: name a single Redis"},
	{"READONLY", "this is a replica: name the primary"},
	{"MISCONF", "this Redis refuses writes, since it cannot save to its disk: mend that first"},
	{"OOM ", "this Redis is full: raise its maxmemory"},
	{"LOADING", "this Redis still reads its data: start again when it is ready"},
	{"written by another release", "run that release, or choose another state.namespace"},
	{"WRONGTYPE", "another program uses these keys: choose another state.namespace"},
	{"unknown command", "want Redis 7.0 or newer"},
	{"Unknown Redis command", "want Redis 7.0 or newer"},
	{"tls:", "check whether it wants redis:// or rediss://, and its certificate"},
	{"x509:", "check its certificate"},
	{"can't parse",
		"the program that listens there does not speak the protocol of Redis: check the address in state.at"},
	{"no such host", "check the name of the host in state.at"},
}

// otherFormat returns the error of a store whose layout has another number than this release's.
func otherFormat(format, want string) error {
	return fmt.Errorf("format %q, want %q: written by another release", format, want)
}

// redisRemedy returns the advice about a Redis that could not be read.
func redisRemedy(err error) string {
	for _, r := range redisRemedies {
		if strings.Contains(err.Error(), r.text) {
			return r.advice
		}
	}
	if errors.Is(err, ErrCorrupt) {
		return "choose another state.namespace, or delete its keys after looking what they are"
	}
	return "start it or check the address in state.at; with state.required = false the server starts without it"
}

// fileRemedy returns the advice about a file that could not be opened.
func fileRemedy(path string, err error) string {
	switch {
	case errors.Is(err, bbolterrors.ErrTimeout):
		return "stop the other shivad, or give each server a state.at of its own"
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return "this server's user must be able to read and write it, and its directory must not be read-only"
	case errors.Is(err, fs.ErrNotExist):
		return "make its directory first, or correct state.at"
	case errors.Is(err, errIrregular), errors.Is(err, syscall.ENOTDIR):
		return "state.at names a file, such as " + strings.TrimRight(path, "/") + "/state.db"
	case errors.Is(fileError(err), ErrFull):
		return "make room on its disk"
	case errors.Is(err, ErrCorrupt), errors.Is(fileError(err), ErrCorrupt):
		return "it was left as it is: move it away to begin anew, or put a backup in its place"
	}
	return "correct state.at, or move the file away to begin anew"
}
