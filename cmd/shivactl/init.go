package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
)

// initCommand makes the files of a new server: it asks no server.
func (c *cli) initCommand() *cobra.Command {
	o := &initOptions{dir: "."}
	cmd := &cobra.Command{
		Use: "init [DIR]", Short: "write the configuration, unit and tokens of a new server",
		Long: `Asks five questions, and writes these files into DIR (default: the current directory):

  shivad.toml      the settings that differ from their defaults, with comments
  shivad.service   a systemd unit that runs shivad with that file, as your user
  client.token     with --secure tokens or tls: a token for clients, which may send requests and feedback
  operator.token   with the same: a token for you, which allows everything except serving as a container
  server.pem       with --secure tls: a test certificate for this machine's names, valid for a year
  server.key       its key; if DIR contains both already, they are used

Each of the flags --listen, --secure, --models, --state and --memory answers a question. --yes answers the remaining
ones with their defaults. Without a terminal, all questions need an answer. Existing files are not overwritten unless
you give --force. Only you can read the files with secrets. At the end the command prints how to continue.

With --json: {"files": [...], "next": [...]}
`,
		Example: `  shivactl init
  shivactl init cell --listen network --secure tls --models models --yes
`,
		Args: atMostOne("directory"),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				o.dir = args[0]
			}
			return c.init(o)
		},
	}
	f := cmd.Flags()
	for _, q := range o.questions() {
		f.Var(value[string]{q.answer, q.check, ""}, q.flag, q.usage)
	}
	f.BoolVar(&c.yes, "yes", false, "answer the remaining questions with their defaults")
	f.BoolVar(&o.force, "force", false, "overwrite the files that exist")
	c.completeFlag(cmd, "listen", oneOf(listenWords...))
	c.completeFlag(cmd, "secure", oneOf(secureWords...))
	return cmd
}

// initOptions are the answers.
type initOptions struct {
	dir   string
	force bool

	listen, secure, models, state, memory string

	python string // of the models, which this shell chooses; "" for none
}

// What --listen and --secure may be.
var listenWords, secureWords = []string{"local", "network"}, []string{"none", "tokens", "tls"}

// A question is asked unless its flag is given.
type question struct {
	flag, usage string
	answer      *string
	text        string        // with the possible answers
	usual       func() string // the answer that Enter gives
	check       func(answer string) (string, error)
}

func (o *initOptions) questions() []question {
	always := func(answer string) func() string { return func() string { return answer } }
	return []question{
		{"listen", "`WHERE` requests come from: local (programs on this machine) or network", &o.listen,
			"Who sends requests: only programs on this machine (local), or also others (network)?", always("local"),
			words(listenWords...)},
		{"secure", "`HOW` to control access: none, tokens, or tls (tokens and encryption)", &o.secure,
			"How is access controlled: not at all (none), with tokens (tokens), or with tokens and encryption (tls)?",
			o.usualSecurity, words(secureWords...)},
		{"models", "`FOLDER` of model files to serve, or none", &o.models,
			"Which folder contains your model files (or none)?", always("none"), folder},
		{"state", "where to keep applications and what they learn: memory, file, or a Redis `URL`, redis://HOST:6379/0", &o.state,
			"Where should the server keep applications and what they learn: in memory (memory), in a file here " +
				"(file), or in a Redis (redis://HOST:6379/0)?", always("file"), stateAnswer},
		{"memory", "memory limit of the service and its models: all, or a `SIZE` such as 8GiB", &o.memory,
			"How much memory may the service and its models use: all, or a size such as 8GiB?",
			always("all"), memoryAnswer},
	}
}

// usualSecurity protects what others can reach.
func (o *initOptions) usualSecurity() string {
	if o.listen == "network" {
		return "tls"
	}
	return "none"
}

// words checks an answer that is one of several words.
func words(all ...string) func(string) (string, error) {
	return func(answer string) (string, error) {
		if !slices.Contains(all, answer) {
			return "", fmt.Errorf("expected one of %s", strings.Join(all, ", "))
		}
		return answer, nil
	}
}

// printable checks an answer that becomes a string of TOML, and a line of the unit.
func printable(answer string) (string, error) {
	if answer == "" || strings.ContainsFunc(answer, func(r rune) bool {
		return !unicode.IsPrint(r) || r == unicode.ReplacementChar
	}) {
		return "", errors.New("expected printable characters")
	}
	return answer, nil
}

// folder checks an answer that names a directory, and makes it absolute.
func folder(answer string) (string, error) {
	if _, err := printable(answer); err != nil || answer == "none" {
		return answer, err
	}
	path, err := filepath.Abs(answer)
	if err != nil {
		return "", err
	}
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return "", errors.New("there is no such folder: make it first, or answer none")
	}
	return path, nil
}

func stateAnswer(answer string) (string, error) {
	if answer == "memory" || answer == "file" {
		return answer, nil
	}
	if !strings.HasPrefix(answer, "redis://") && !strings.HasPrefix(answer, "rediss://") {
		return "", errors.New("expected memory, file, or the URL of a Redis, such as redis://HOST:6379/0")
	}
	return printable(answer)
}

// leastMemory is what a server needs for one message of the greatest size, twice.
const leastMemory = 1 << 30

func memoryAnswer(answer string) (string, error) {
	if answer == "all" {
		return answer, nil
	}
	if n, err := memorySize(answer); err != nil || n < leastMemory {
		return "", errors.New("expected all, or a size of at least 1GiB in whole MiB or GiB, such as 8GiB")
	}
	return answer, nil
}

// memorySize parses a whole number of MiB or GiB.
func memorySize(text string) (int64, error) {
	unit := int64(1 << 20)
	number, found := strings.CutSuffix(text, "MiB")
	if !found {
		number, found = strings.CutSuffix(text, "GiB")
		unit = 1 << 30
	}
	n, err := strconv.ParseInt(number, 10, 32)
	if !found {
		err = strconv.ErrSyntax
	}
	return n * unit, err
}

func (c *cli) init(o *initOptions) error {
	if err := c.answer(o.questions()); err != nil {
		return err
	}
	dir, err := filepath.Abs(o.dir)
	if err == nil {
		_, err = printable(dir) // it becomes a part of the unit
	}
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return unfit("", "%s: %v", o.dir, err)
	}
	if o.python, err = environmentPython(); err != nil {
		return unfit("", "%v", err)
	}
	f, err := o.files(dir)
	if err != nil {
		return unfit("", "%v", err)
	}
	if err := writeAll(f, o.force); err != nil {
		return err
	}
	next := []string{
		"shivad --config " + shellWord(filepath.Join(o.dir, "shivad.toml")),
		"sudo install -m 644 " + shellWord(filepath.Join(o.dir, unitFile)) +
			" /etc/systemd/system/ && sudo systemctl enable --now shivad",
		o.asking(),
	}
	if c.json {
		names := []string{}
		for _, one := range f {
			names = append(names, one.path)
		}
		return c.printJSON(map[string]any{"files": names, "next": next})
	}
	for _, one := range f {
		fmt.Fprintf(c.stdout, "%-16s %s\n", filepath.Base(one.path), one.what)
	}
	if os.Geteuid() == 0 {
		fmt.Fprintln(c.stdout, "\nThe service will run as root, since root writes these files; another user is safer.")
	}
	fmt.Fprintf(c.stdout, "\nTry it, until Ctrl-C:\n  %s\n", next[0])
	fmt.Fprintf(c.stdout, "Have it run, now and after each start of the machine:\n  %s\n", next[1])
	fmt.Fprintf(c.stdout, "Ask a model, here with JSON that you type; a file has its name instead of -:\n  %s\n", next[2])
	return nil
}

// asking is the command to ask the first model, or MODEL if no file is one yet: with the token and
// the certificate of a client.
func (o *initOptions) asking() string {
	model := "MODEL"
	if files, _ := filepath.Glob(filepath.Join(o.models, "*.onnx")); len(files) > 0 {
		model = strings.TrimSuffix(filepath.Base(files[0]), ".onnx")
	}
	command := "shivactl infer " + shellWord(model) + " -"
	if o.secure != "none" {
		command = "SHIVA_TOKEN_FILE=" + shellWord(filepath.Join(o.dir, "client.token")) + " " + command
	}
	if o.secure == "tls" {
		command += " --tls-ca " + shellWord(filepath.Join(o.dir, "server.pem"))
	}
	return command
}

// shellWord quotes a word for a shell if it needs to be.
func shellWord(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("/._-+@:", r)
	}) {
		return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
	}
	return text
}

// answer asks the questions that no flag has answered.
func (c *cli) answer(all []question) error {
	var open []question
	var flags []string
	for _, q := range all {
		if *q.answer == "" {
			open, flags = append(open, q), append(flags, "--"+q.flag)
		}
	}
	if c.yes {
		for _, q := range open {
			*q.answer = q.usual()
		}
		return nil
	}
	if len(open) == 0 {
		return nil
	}
	keyboard, err := c.keyboard()
	if err != nil {
		return &failure{"usage", "expected " + strings.Join(flags, ", ") + ", as there is no terminal to ask at",
			"--yes takes the default for those that are left out", exitUsage}
	}
	for _, q := range open {
		for *q.answer == "" {
			line, ok := c.question(keyboard, fmt.Sprintf("%s [%s] ", q.text, q.usual()))
			if !ok {
				return &failure{"canceled", "nothing was written", "", exitRefused}
			}
			if line == "" {
				line = q.usual()
			}
			if *q.answer, err = q.check(line); err != nil {
				fmt.Fprintln(c.stderr, "  "+err.Error())
			}
		}
	}
	return nil
}
