package main

import (
	"cmp"
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

	"github.com/shivad/shivad/cmd/shivad/unit"
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
		if python := environmentPython(); python != "" {
			folder.settings = append(folder.settings, [2]string{"python", strconv.Quote(python)})
		}
		list = append(list, folder)
	}
	return list
}

// environmentPython returns the Python that this shell chooses for model files; "" if it chooses
// none. A service does not have the variables.
func environmentPython() string {
	if python := os.Getenv("SHIVAD_PYTHON"); python != "" {
		return python
	}
	if venv := os.Getenv("VIRTUAL_ENV"); venv != "" {
		return filepath.Join(venv, "bin", "python")
	}
	return ""
}

// unit returns the unit of the packages for the files of a directory, to be run by this user.
func (o *initOptions) unit(dir string) (string, error) {
	me, err := user.Current()
	if err != nil {
		return "", err
	}
	group := cmp.Or(groupName(me.Gid), me.Gid)
	program := "/usr/bin/shivad"
	if found, err := serverProgram(); err == nil {
		if program, err = filepath.Abs(found); err != nil {
			return "", err
		}
	}
	text := unit.Text
	for _, change := range [][2]string{
		{"ExecStart=/usr/bin/shivad --config /etc/shivad/shivad.toml",
			"ExecStart=" + unitWord(program) + " --config " + unitWord(filepath.Join(dir, "shivad.toml"))},
		{"User=shivad", "User=" + me.Username},
		{"Group=shivad", "Group=" + group + "\nReadWritePaths=" + unitWord(dir)},
		{"ProtectHome=yes", o.protectHome(dir, program)},
	} {
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

func groupName(id string) string {
	if group, err := user.LookupGroupId(id); err == nil {
		return group.Name
	}
	return ""
}

// protectHome hides the homes of users unless what the server needs is there.
func (o *initOptions) protectHome(needs ...string) string {
	needs = append(needs, o.models, environmentPython())
	home, _ := os.UserHomeDir()
	if slices.ContainsFunc(needs, func(path string) bool {
		return slices.ContainsFunc([]string{"/home", "/root", "/run/user", home}, func(top string) bool {
			return top != "" && top != "/" && strings.HasPrefix(path+"/", top+"/")
		})
	}) {
		return "ProtectHome=read-only"
	}
	return "ProtectHome=yes"
}

// unitWord quotes a word of a line of a unit.
func unitWord(text string) string {
	text = strings.NewReplacer(`%`, `%%`, `$`, `$$`).Replace(text)
	if strings.ContainsAny(text, " \"'\\;") {
		return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
	}
	return text
}

// writeAll writes all files or none. Without force none may exist.
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
