// Package doctor examines a machine and a configuration as a start of the server would, without
// starting one: whether the file is valid, its addresses are free, its certificates, state and
// model files can be used, and the machine's limits suffice. What is wrong, it says with the line
// that mends it.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/config"
)

// Examine examines this machine for a server with a file; "" is admin.DefaultFile, or the defaults
// if there is none. It opens each address for a moment, connects to Redis, and executes the Pythons
// that are to read model files. The end of ctx makes checks that wait end as failed.
func Examine(ctx context.Context, file string) admin.Diagnosis {
	if file == "" {
		if _, err := os.Stat(admin.DefaultFile); !errors.Is(err, fs.ErrNotExist) {
			file = admin.DefaultFile
		}
	}
	return examine(ctx, file, machine{root: "/", now: time.Now})
}

// A machine is what tests replace: where the kernel's files are, and the wall clock.
type machine struct {
	root string
	now  func() time.Time
}

func (m machine) read(path string) []byte {
	text, _ := os.ReadFile(filepath.Join(m.root, path))
	return text
}

func (m machine) has(path string) bool {
	_, err := os.Stat(filepath.Join(m.root, path))
	return err == nil
}

// An examination collects findings.
type examination struct {
	machine
	ctx   context.Context
	file  string
	cfg   config.Config
	check string // that is being made
	found []admin.Finding
}

func (e *examination) ok(format string, args ...any) { e.add(admin.OK, "", format, args...) }
func (e *examination) note(remedy, format string, args ...any) {
	e.add(admin.Note, remedy, format, args...)
}
func (e *examination) wrong(remedy, format string, args ...any) {
	e.add(admin.Wrong, remedy, format, args...)
}

func (e *examination) add(v admin.Verdict, remedy, format string, args ...any) {
	e.found = append(e.found, admin.Finding{Check: e.check, Verdict: v, Text: fmt.Sprintf(format, args...),
		Remedy: remedy})
}

// examine makes all checks; those of an invalid configuration end with it.
func examine(ctx context.Context, file string, m machine) admin.Diagnosis {
	e := &examination{machine: m, ctx: ctx, file: file}
	e.check = "configuration"
	valid := e.configuration()
	for _, one := range []struct {
		check    string
		make     func()
		anything bool // also without a valid configuration
	}{
		{"ports", e.ports, false},
		{"descriptors", e.descriptors, false},
		{"memory", e.memory, false},
		{"processors", e.processors, true},
		{"clock", e.clock, true},
		{"certificates", e.certificates, false},
		{"state", e.state, false},
		{"containers", e.containers, false},
		{"model files", e.modelFiles, false},
		{"gpu", e.gpus, true},
	} {
		if e.check = one.check; valid || one.anything {
			one.make()
		}
	}
	r := admin.Diagnosis{Config: file, Findings: e.found}
	for _, f := range e.found {
		if f.Verdict == admin.Wrong {
			r.Wrong++
		}
	}
	return r
}

// configuration reads and checks the file, and reports whether it is valid.
func (e *examination) configuration() bool {
	if e.file == "" {
		e.cfg = config.Default()
		e.ok("no file: the defaults of shivad")
		return true
	}
	var err error
	if e.cfg, err = config.Load(e.file); err == nil {
		err = e.cfg.Validate()
	}
	faults, isInvalid := errors.AsType[*config.Error](err)
	switch {
	case isInvalid:
		for _, f := range faults.Faults {
			e.invalid(f)
		}
	case errors.Is(err, fs.ErrPermission):
		e.wrong("sudo shivactl doctor --config "+e.file, "%v", err)
	case err != nil:
		e.wrong("shivactl doctor --config FILE, with the file that shivad reads", "%v", err)
	case e.cfg.Blank():
		e.note("", "%s is empty: the defaults of shivad", e.file)
	default:
		e.ok("%s is valid", e.file)
	}
	return err == nil
}

// ofCertificates matches the settings that name files of certificates.
var ofCertificates = regexp.MustCompile(`(^|\.)tls\.(cert|key|client_ca|client_crl)$`)

// invalid adds a fault of the configuration, or of the certificates that it names: validation reads
// both.
func (e *examination) invalid(f config.Fault) {
	if ofCertificates.MatchString(f.Key) {
		e.found = append(e.found, admin.Finding{Check: "certificates", Verdict: admin.Wrong, Text: f.String(),
			Remedy: "correct the line or replace the file, then: systemctl reload shivad"})
		return
	}
	e.wrong("correct the line, then: shivad --config "+e.file+" --check", "%s", f)
}
