package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/server/admin"
)

// A kind is the kind of a word on a command line; it tells where completion finds candidates.
type kind int

const (
	nothing kind = iota // cannot be completed
	aFile               // the shell completes files
	aModel
	aVersion // of the model before it
	aLink    // a model, one of its versions, or all
	anApp
	aName  // a model or an application
	aRoute // a model, one of its versions, or an application
	aPolicy
	aContainer
	aShell
	aDoor
	aKeep
	aSetting     // KEY= of the model before it
	aSettingName // KEY of the model before it
	aParam       // NAME= of a policy
	aConfigKey
	aProfile
	aLevel
)

// flagKinds are the kinds of the values of flags, by the flag's name.
var flagKinds = map[string]kind{"model": aLink, "policy": aPolicy, "param": aParam, "door": aDoor, "keep": aKeep, "profile": aProfile, "level": aLevel}

// settingKinds are the kinds of the values of models' settings.
var settingKinds = map[string]kind{"keep": aKeep, "default_version": aVersion}

// completing is the command that the scripts of completionCommand call. No help lists it.
const completing = "__complete"

var completionCommand = command{
	name: "completion", args: "SHELL", short: "print what makes bash, zsh or fish complete commands, flags and names",
	help: `Commands, flags and profiles are completed, and what the server that --admin names knows: models, applications, containers,
policies and their parameters, settings of models and of the server. To have it in every shell:

  bash   echo 'source <(shivactl completion bash)' >> ~/.bashrc
  zsh    echo 'source <(shivactl completion zsh)' >> ~/.zshrc          after compinit
  fish   shivactl completion fish > ~/.config/fish/completions/shivactl.fish

With --json: {"shell", "script"}
`,
	takes: []kind{aShell, nothing},
	run: func(c *cli, _ any, args []string) error {
		if len(args) != 1 || scripts[args[0]] == "" {
			return usage("completion", "expected one of bash, zsh, fish, got %q", strings.Join(args, " "))
		}
		if c.json {
			return c.printJSON(map[string]string{"shell": args[0], "script": scripts[args[0]]})
		}
		_, err := fmt.Fprint(c.stdout, scripts[args[0]])
		return err
	},
}

// scripts call shivactl for the candidates, given the words so far and the beginning of the next.
// If it finds none, the shell looks for files.
var scripts = map[string]string{
	"bash": `_shivactl() {
  local IFS=$'\n'
  COMPREPLY=($(shivactl __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
  if [[ ${COMPREPLY[0]-} == *= ]]; then compopt -o nospace; fi
}
complete -o default -F _shivactl shivactl
`,
	// For sourcing, or as a file in $fpath, which zsh makes the body of the function when it is
	// first called.
	"zsh": `#compdef shivactl
_shivactl() {
  local -a found keys
  found=("${(@f)$(shivactl __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  keys=("${(@M)found:#*=}")
  found=("${(@)found:#*=}")
  if [[ -n "$keys[1]" ]]; then compadd -S '' -- "${keys[@]}"; fi
  if [[ -n "$found[1]" ]]; then compadd -- "${found[@]}"; elif [[ -z "$keys[1]" ]]; then _files; fi
}
if [[ $funcstack[1] == _shivactl ]]; then _shivactl "$@"; else compdef _shivactl shivactl; fi
`,
	"fish": `function __shivactl
  set -l found (shivactl __complete (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)
  if test (count $found) -gt 0
    printf '%s\n' $found
  else
    __fish_complete_path (commandline -ct)
  end
end
complete -c shivactl -f -a '(__shivactl)'
`,
}

// askTime bounds the wait for the server's names: the user waits at the keyboard.
const askTime = time.Second

// complete prints the candidates for the last word, one per line.
func (c *cli) complete(words []string) error {
	if len(words) == 0 {
		words = []string{""}
	}
	ctx, cancel := context.WithTimeout(c.ctx, askTime)
	defer cancel()
	c.ctx = ctx
	words, last := words[:len(words)-1], words[len(words)-1]
	if last == "=" { // bash makes "=" a word of its own
		words, last = append(slices.Clone(words), last), ""
	}
	for _, candidate := range c.candidates(words, last) {
		if strings.HasPrefix(candidate, last) {
			fmt.Fprintln(c.stdout, candidate)
		}
	}
	return nil
}

// candidates returns the words that may follow the given words; last is the beginning of the next.
func (c *cli) candidates(words []string, last string) []string {
	f := newFlagSet("")
	c.register(f)
	var cmd command
	var positional []string
	help := false // its arguments are commands and their verbs
	for i := 0; i < len(words); i++ {
		word := words[i]
		if name, value, assigned := strings.Cut(strings.TrimLeft(word, "-"), "="); strings.HasPrefix(word, "-") && name != "" {
			known := f.Lookup(name)
			if known == nil || isBool(known) {
				continue
			}
			if !assigned && i+1 < len(words) && words[i+1] == "=" {
				i++
			}
			if !assigned {
				if i++; i >= len(words) {
					return c.find(flagKinds[name], nil)
				}
				value = words[i]
			}
			_ = f.Set(name, value) // completion ignores wrong values
			c.given[name] = true
			continue
		}
		switch {
		case cmd.name == "" && word == "help":
			help = true
		case cmd.name == "":
			if found, ok := commandOf(word); ok {
				cmd = found
				f, _ = c.flagsOf(cmd)
			}
		case len(positional) == 0 && cmd.verbs != nil:
			verb, ok := cmd.verb(word)
			if !ok {
				positional = append(positional, word)
				continue
			}
			cmd = verb
			f, _ = c.flagsOf(cmd)
		default:
			positional = append(positional, word)
		}
	}
	if strings.HasPrefix(last, "-") {
		var flags []string
		f.VisitAll(func(fl *flag.Flag) { flags = append(flags, "--"+fl.Name) })
		return flags
	}
	if cmd.name == "" {
		return append(names(commands()), "help")
	}
	var found []string
	if len(positional) == 0 {
		for _, v := range cmd.verbs {
			_, word, _ := strings.Cut(v.name, " ")
			found = append(found, word)
		}
	}
	if help {
		return found
	}
	k := cmd.takes[min(len(positional), len(cmd.takes)-1)]
	if k == aSetting {
		return c.settings(positional, last)
	}
	return append(found, c.find(k, positional)...)
}

// settings returns the candidates after "models set": keys, or after a key its values. Bash splits
// words at =.
func (c *cli) settings(positional []string, last string) (found []string) {
	if n := len(positional); positional[n-1] == "=" {
		return c.find(settingKinds[positional[n-2]], positional)
	}
	if key, _, assigned := strings.Cut(last, "="); assigned {
		for _, value := range c.find(settingKinds[key], positional) {
			found = append(found, key+"="+value)
		}
		return found
	}
	for _, key := range c.find(aSettingName, positional) {
		found = append(found, key+"=")
	}
	return found
}

func isBool(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

// find asks for the names of a kind. Without an answer from the server there are none.
func (c *cli) find(k kind, positional []string) (found []string) {
	if k != aProfile && c.applyProfile() != nil {
		return nil
	}
	switch k {
	case aShell:
		return []string{"bash", "zsh", "fish"}
	case aDoor:
		for _, d := range doors {
			found = append(found, d.name)
		}
	case aKeep:
		return []string{"all", "latest"}
	case aLevel:
		return []string{"info", "warn", "error"}
	case aProfile:
		_, all, _ := profiles()
		return slices.Sorted(maps.Keys(all))
	case aSettingName:
		return c.settingNames(positional)
	case aConfigKey:
		var all map[string]any
		_ = c.get("/v1/config", &all)
		lines := map[string]string{}
		flatten(lines, "", all)
		return slices.Sorted(maps.Keys(lines))
	case aParam:
		var list admin.PolicyList
		_ = c.get("/v1/policies", &list)
		for _, p := range list.Policies {
			for _, one := range p.Parameters {
				found = append(found, one.Name+"=")
			}
		}
		slices.Sort(found)
		return slices.Compact(found)
	case aPolicy:
		var list admin.PolicyList
		_ = c.get("/v1/policies", &list)
		for _, p := range list.Policies {
			found = append(found, p.Name)
		}
	case aContainer:
		var list admin.Containers
		_ = c.get("/v1/containers", &list)
		for _, one := range list.Containers {
			found = append(found, one.Name)
		}
	case aModel, aVersion, aLink, aName, aRoute:
		var list admin.ModelList
		_ = c.get("/v1/models", &list)
		for _, m := range list.Models {
			if k == aVersion {
				if len(positional) > 0 && m.Name == positional[0] {
					found = append(found, m.Version)
				}
				continue
			}
			if !slices.Contains(found, m.Name) {
				found = append(found, m.Name)
			}
			if k != aModel && k != aName {
				found = append(found, m.Name+"/"+m.Version)
			}
		}
	}
	if k == anApp || k == aName || k == aRoute {
		var list admin.AppList
		_ = c.get("/v1/apps", &list)
		for _, a := range list.Apps {
			found = append(found, a.Name)
		}
	}
	return found
}

// settingNames returns the settings of the model named first, except those already on the line.
func (c *cli) settingNames(positional []string) (found []string) {
	var list admin.ModelList
	_ = c.get("/v1/models", &list)
	for _, m := range list.Models {
		policy, _ := m.Policy.(map[string]any)
		if m.Name != positional[0] || policy == nil {
			continue
		}
		for _, key := range slices.Sorted(maps.Keys(policy)) {
			named := func(word string) bool { word, _, _ = strings.Cut(word, "="); return word == key }
			// "batched" needs a restart, so it cannot be set.
			if key != "batched" && !slices.ContainsFunc(positional[1:], named) {
				found = append(found, key)
			}
		}
		return found
	}
	return nil
}
