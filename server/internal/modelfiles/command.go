package modelfiles

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"github.com/shivad/shivad/server/config"
)

// contentEnv tells a process which contents it was started for: processes of other contents have
// another command, and are replaced.
const contentEnv = "SHIVA_MODEL_CONTENT"

// arguments are those of the package, besides the version. A name may begin with a dash.
func (f *found) arguments() []string {
	list := []string{"-m", "shiva_container", "serve", f.path, "--name=" + f.model}
	if device := strings.Join(f.reading.Device, ","); device != "auto" {
		list = append(list, "--device", device)
	}
	if f.reading.Batch != "auto" {
		list = append(list, "--batch", string(f.reading.Batch))
	}
	if f.reading.As != "auto" {
		list = append(list, "--as", f.reading.As)
	}
	if f.reading.Trust {
		list = append(list, "--trust")
	}
	if f.declared != nil {
		text, err := json.Marshal(f.declared)
		if err != nil {
			panic(err) // a bug: names and numbers can be encoded
		}
		list = append(list, "--declare", string(text))
	}
	return list
}

// key identifies what is served: files with those contents, read that way.
func (f *found) key(content string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %q", content, f.arguments()))
	return hex.EncodeToString(sum[:])
}

// command returns the container for contents, as a version of the model; python is the program.
func (f *found) command(python, content, version string) config.Container {
	c := config.Container{
		Name: f.container, Command: append([]string{python}, f.arguments()...), Model: f.model, Process: f.process,
	}
	c.Env = map[string]string{contentEnv: content}
	maps.Copy(c.Env, f.process.Env)
	switch {
	case !isProgram(f.path): // with the network below one that takes pictures
		c.Serve, c.Version = []string{f.model + "-raw"}, version
		c.Command = append(c.Command, "--version", version)
	case f.as == Required:
		c.Serve = []string{"*"} // it may declare several models
	default: // and not take the names of others
		c.Serve = []string{f.model + "-*"}
	}
	return c
}
