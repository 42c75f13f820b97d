package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/shivad/shivad/shiva/hosttest"
)

// In each shell, Tab completes the candidates of shivactl: names followed by a space, keys without,
// and files where there are no candidates.
func TestCompletionInShells(t *testing.T) {
	_, at := fake(t, "tcp")
	for _, shell := range []struct {
		name string
		file string // that it reads first
		args []string
		// Commands for the shell: the program under test completes, and a command line is shown.
		setup string
	}{
		{"bash", "bashrc", []string{"--rcfile", "bashrc", "-i"}, posix + "PS1='ready> '\nsource <(shivactl completion bash)\n"},
		{"zsh", ".zshrc", []string{"-i"}, posix + "PS1='ready> '\n" + compinit + "source <(shivactl completion zsh)\n"},
		// The place that packages use: zsh reads the file at the first Tab.
		{"zsh", ".zshrc", []string{"-i"}, posix + "PS1='ready> '\nfpath=($HOME $fpath)\nshivactl completion zsh >~/_shivactl\n" + compinit},
		{"fish", "setup.fish", []string{"--no-config", "-i", "-C", "source setup.fish"}, `
function shivactl
  switch $argv[1]
    case completion __complete
      SHIVACTL_IS_ASKED=1 $PROGRAM $argv
    case '*'
      printf '<%s>' $argv
      echo
  end
end
function fish_prompt; echo -n 'ready> '; end
function fish_greeting; end
shivactl completion fish | source
`},
	} {
		t.Run(shell.name, func(t *testing.T) {
			t.Parallel()
			hosttest.Need(t, shell.name)
			home := t.TempDir()
			write(t, filepath.Join(home, shell.file), shell.setup)
			write(t, filepath.Join(home, "state.json"), "{}")
			w := openTerminal(t, 120, 24)
			cmd := exec.Command(shell.name, shell.args...)
			cmd.Dir = home
			cmd.Env = []string{"HOME=" + home, "ZDOTDIR=" + home, "TERM=xterm", "LC_ALL=C.UTF-8", "PATH=" + os.Getenv("PATH"), "PROGRAM=" + os.Args[0], adminEnv + "=" + at}
			cmd.Stdin, cmd.Stdout, cmd.Stderr = w.device, w.device, w.device
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Pdeathsig: syscall.SIGKILL}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			})
			w.waitFor("ready> ")
			for _, line := range []struct{ keys, want string }{
				{"shivactl models set dig\tsl\t3", "<models><set><digits><slots=3>"},
				{"shivactl stat\t--jso\t", "<status><--json>"},
				{"shivactl apps create x --param et\t1 --policy ex\t--model digits/2\t", "<apps><create><x><--param><eta=1><--policy><exp4><--model><digits/2>"},
				{"shivactl import stat\t", "<import><state.json>"},
			} {
				// A shell may drop keys that are typed before its prompt.
				prompts := strings.Count(w.text(), "ready> ")
				w.press(line.keys + "\n")
				w.waitFor(line.want)
				w.waitForMore("ready> ", prompts)
			}
			w.press("exit\n")
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v\n%s", err, w.text())
			}
		})
	}
}

var posix = fmt.Sprintf(`shivactl() {
  case "$1" in
    completion|__complete) %s=1 "$PROGRAM" "$@" ;;
    *) printf '<%%s>' "$@"; echo ;;
  esac
}
`, "SHIVACTL_IS_ASKED")

// compinit starts zsh's completion. By default it reads the first line of a thousand functions,
// each for some command. Without their directories it still finds the functions that all commands
// need, except the two that complete files.
const compinit = `all=($fpath)
fpath=(${fpath:#*/Completion/[^B]*})
autoload -U compinit
compinit -u -D
fpath=($all)
autoload -U _files _path_files
`
