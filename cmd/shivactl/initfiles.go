package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/shivad/shivad/cmd/internal/unit"
	"github.com/shivad/shivad/shiva/token"
)

const unitFile = "shivad.service"

// A newFile is one that init writes.
type newFile struct {
	path, what string
	text       []byte
	mode       fs.FileMode
}

const secretMode = 0o600

// files returns the files of a server in a directory, an absolute path. Those with secrets are
// first, so that what names them comes after them.
func (o *initOptions) files(dir string) ([]newFile, error) {
	var list []newFile
	add := func(name, what string, text []byte, mode fs.FileMode) {
		list = append(list, newFile{filepath.Join(dir, name), what, text, mode})
	}
	tables := o.settings(dir)
	if o.secure != "none" {
		for _, one := range []struct{ name, what, may string }{
			{"client", "a token for clients: SHIVA_TOKEN_FILE=client.token", `["infer", "feedback"]`},
			{"operator", "a token for you: SHIVA_TOKEN_FILE=operator.token", `["infer", "feedback", "load", "admin:write"]`},
		} {
			secret := token.New()
			add(one.name+".token", one.what, []byte(secret+"\n"), secretMode)
			tables = append(tables, table{"[[identity]]", [][2]string{{"name", strconv.Quote(one.name)},
				{"token_sha256", strconv.Quote(token.Hash(secret))}, {"may", one.may}}})
		}
	}
	if o.secure == "tls" && !(exists(filepath.Join(dir, "server.pem")) && exists(filepath.Join(dir, "server.key"))) {
		certificate, key, err := testCertificate()
		if err != nil {
			return nil, err
		}
		add("server.key", "the key of server.pem", key, secretMode)
		add("server.pem", "a certificate for tests, which clients trust by --tls-ca", certificate, 0o644)
	}
	text, err := commented(tables)
	if err != nil {
		return nil, err
	}
	// The URL of a Redis may have a password.
	add("shivad.toml", "the configuration", []byte(text), secretMode)
	service, err := o.unit(dir)
	add(unitFile, "the systemd unit", []byte(service), 0o644)
	return list, err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// settings returns the settings that the answers change.
func (o *initOptions) settings(dir string) []table {
	host, scheme := "127.0.0.1", ""
	if o.listen == "network" {
		host = ""
	}
	if o.secure == "tls" {
		scheme = "tls://"
	}
	var list []table
	for _, door := range []struct{ name, port string }{{"[tcp]", "6174"}, {"[rest]", "8000"}, {"[grpc]", "8001"}} {
		addr := scheme + net.JoinHostPort(host, door.port)
		list = append(list, table{door.name, [][2]string{{"listen", strconv.Quote(addr)}}})
	}
	list = append(list, table{"[admin]", [][2]string{{"listen", `"127.0.0.1:8002"`}}})
	if o.secure == "tls" {
		list = append(list, table{"[tls]", [][2]string{{"cert", `"server.pem"`}, {"key", `"server.key"`}}})
	}
	switch o.state {
	case "memory":
	case "file":
		list = append(list, table{"[state]", [][2]string{{"at", strconv.Quote(filepath.Join(dir, "state.db"))}}})
	default:
		list = append(list, table{"[state]", [][2]string{{"at", strconv.Quote(o.state)}}})
	}
	if n, err := memorySize(o.memory); err == nil {
		half := fmt.Sprintf("%dMiB", n>>21)
		list = append(list, table{"[limits]", [][2]string{{"payload_bytes", strconv.Quote(half)}}})
	}
	if o.models != "none" {
		path, err := filepath.Rel(dir, o.models) // which survives a move of both
		if err != nil || !filepath.IsLocal(path) {
			path = o.models
		}
		folder := table{"[[model_folder]]", [][2]string{{"path", strconv.Quote(path)}}}
		if o.python != "" {
			folder.settings = append(folder.settings, [2]string{"python", strconv.Quote(o.python)})
		}
		list = append(list, folder)
	}
	return list
}

// environmentPython returns the Python that this shell chooses for model files; "" if it chooses
// none. A service has neither the variables nor this directory.
func environmentPython() (string, error) {
	name, python := "SHIVAD_PYTHON", os.Getenv("SHIVAD_PYTHON")
	if venv := os.Getenv("VIRTUAL_ENV"); python == "" && venv != "" {
		name, python = "VIRTUAL_ENV", filepath.Join(venv, "bin", "python")
	}
	if python == "" {
		return "", nil
	}
	var err error
	if strings.Contains(python, "/") { // otherwise a program of $PATH
		python, err = filepath.Abs(python)
	}
	if err == nil {
		_, err = printable(python)
	}
	if err != nil {
		return "", fmt.Errorf("$%s: %w", name, err)
	}
	return python, nil
}

// unit returns the unit of the packages for the files of a directory, to be run by this user.
func (o *initOptions) unit(dir string) (string, error) {
	me, group := names()
	program := "/usr/bin/shivad"
	if found, err := serverProgram(); err == nil {
		if program, err = filepath.Abs(found); err != nil {
			return "", err
		}
	}
	// In arguments, but not in paths, $ begins a variable.
	file := strings.ReplaceAll(unitWord(filepath.Join(dir, "shivad.toml")), "$", "$$")
	changes := [][2]string{
		{"ExecStart=/usr/bin/shivad --config /etc/shivad/shivad.toml",
			"ExecStart=" + unitWord(program) + " --config " + file},
		{"User=shivad", "User=" + me},
		{"Group=shivad", "Group=" + group + "\nReadWritePaths=" + unitWord(dir)},
	}
	needs := targets(dir, program, o.models, o.python)
	home, _ := os.UserHomeDir()
	if anyBelow(needs, "/home", "/root", "/run/user", home) {
		changes = append(changes, [2]string{"ProtectHome=yes", "ProtectHome=read-only"})
	}
	if anyBelow(needs, "/tmp", "/var/tmp") {
		changes = append(changes, [2]string{"PrivateTmp=yes", "PrivateTmp=no"})
	}
	text := unit.Text
	for _, change := range changes {
		if !strings.Contains(text, "\n"+change[0]+"\n") {
			return "", fmt.Errorf("the unit of the packages lacks %s", change[0])
		}
		text = strings.Replace(text, "\n"+change[0]+"\n", "\n"+change[1]+"\n", 1)
	}
	if o.memory != "all" {
		text = strings.Replace(text, "\nUser=", "\nMemoryMax="+strings.TrimSuffix(o.memory, "iB")+"\nUser=", 1)
	}
	return text, nil
}

// names returns the names of this user and group: their numbers, as in a container, if they have
// none.
func names() (me, group string) {
	me, group = strconv.Itoa(os.Getuid()), strconv.Itoa(os.Getgid())
	if found, err := user.LookupId(me); err == nil {
		me = found.Username
	}
	if found, err := user.LookupGroupId(group); err == nil {
		group = found.Name
	}
	return me, group
}

// targets returns paths, and what they are links to: a virtual environment's Python often is one.
func targets(paths ...string) []string {
	for _, path := range slices.Clone(paths) {
		if target, err := filepath.EvalSymlinks(path); err == nil {
			paths = append(paths, target)
		}
	}
	return paths
}

// anyBelow reports whether one of the paths is one of the directories, or below it.
func anyBelow(paths []string, directories ...string) bool {
	return slices.ContainsFunc(paths, func(path string) bool {
		return slices.ContainsFunc(directories, func(top string) bool {
			return top != "" && top != "/" && strings.HasPrefix(path+"/", top+"/")
		})
	})
}

// unitWord quotes a word of a line of a unit.
func unitWord(text string) string {
	text = strings.ReplaceAll(text, "%", "%%")
	if strings.ContainsAny(text, " \"'\\;") {
		return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
	}
	return text
}

// writeAll writes all files or none, and none may exist. With force it replaces those that exist;
// if one cannot be written, those before it stay.
func writeAll(list []newFile, force bool) error {
	var there []string
	for _, f := range list {
		if _, err := os.Lstat(f.path); err == nil {
			there = append(there, f.path)
		}
	}
	if len(there) > 0 && !force {
		return unfit("--force overwrites", "there is already: %s", strings.Join(there, ", "))
	}
	var made []string
	for _, f := range list {
		var err error
		if force {
			err = errors.Join(writeWhole(f.path, f.text), os.Chmod(f.path, f.mode))
		} else {
			err = writeNew(f.path, f.text, f.mode)
		}
		if err != nil {
			for _, path := range made {
				os.Remove(path)
			}
			return unfit("", "%s cannot be written: %v", f.path, err)
		}
		if !force {
			made = append(made, f.path)
		}
	}
	return nil
}
