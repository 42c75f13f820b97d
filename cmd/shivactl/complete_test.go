package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/shivad/shivad/shiva/hosttest"
)

// TestMain is shivactl itself for the shells of these tests.
func TestMain(m *testing.M) {
	if os.Getenv("SHIVACTL_IS_ASKED") != "" {
		main()
	}
	os.Exit(m.Run())
}

func TestCompletion(t *testing.T) {
	_, at := fake(t, "tcp")
	if code := run(context.Background(), []string{"apps", "create", "digits-app", "--model", "digits", "--admin", at}, nil, io.Discard, io.Discard); code != exitOK {
		t.Fatal(code)
	}
	for _, c := range []struct{ words, want string }{
		{"mo", "models"},
		{"co", "completion config containers"},
		{"--ad", "--addr --admin"},
		{"--timeout 5s exp", "explain export"},
		{"help ap", "apps"},
		{"help apps", "apps"},
		{"help apps ", "change create delete list show"},
		{"help apps show ", ""},
		{"apps ", "change create delete digits-app list show"},
		{"apps change ", "digits-app"},
		{"apps change digits-app ", ""},
		{"apps create new --po", "--policy"},
		{"apps create new --policy ", "exp4 single"},
		{"apps create new --policy = e", "exp4"},
		{"apps create new --policy =", "exp4 single"},
		{"apps create new --policy=exp4 --model digits/", "digits/1 digits/2"},
		{"apps delete --json d", "digits-app"},
		{"models set dig", "digits"},
		{"models set-version digits ", "1 2"},
		{"links add digits-app ", "digits digits/1 digits/2 plain plain/1"},
		{"policies learned ", "digits-app"},
		{"policies ex", "exp4"},
		{"infer di", "digits digits-app digits/1 digits/2"},
		{"infer digits ", ""},
		{"containers stop ", "digits iris"},
		{"completion z", "zsh"},
		{"bench digits --door ", "grpc rest tcp"},
		{"bench digits --door = r", "rest"},
		{"bench digits --keep ", "all latest"},
		{"bench digits --streams 4 --keep l", "latest"},
		{"apps create new --keep a", "all"},
		{"infer digits --door ", ""},
		{"export ", ""},
		{"frobnicate ", "--all"},
		{"--admin " + hosttest.Refusing(t) + " models di", ""},
	} {
		words := strings.Split(c.words, " ")
		var out bytes.Buffer
		if code := run(context.Background(), append([]string{"--admin", at, "__complete"}, words...), nil, &out, io.Discard); code != exitOK {
			t.Errorf("%s: exit %d", c.words, code)
		}
		got := strings.Fields(out.String())
		slices.Sort(got)
		if c.want == "--all" { // of a command that there is not: commands
			if !slices.Contains(got, "apps") {
				t.Errorf("%s: got %q", c.words, got)
			}
			continue
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: got %q, expected %s", c.words, got, c.want)
		}
	}
}

// The script for bash does what a shell does when Tab is pressed. The other shells need not be
// installed; their scripts differ in how they hand over words and take lines.
func TestCompletionInBash(t *testing.T) {
	_, at := fake(t, "tcp")
	script := fmt.Sprintf(`
shivactl() { SHIVACTL_IS_ASKED=1 %q "$@"; }
source <(shivactl completion bash)
complete -p shivactl
for line in "shivactl --admin %[2]s models set di" "shivactl --admin %[2]s apps cr"; do
  COMP_WORDS=($line); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _shivactl; echo "${COMPREPLY[*]}"
done`, os.Args[0], at)
	out, err := exec.CommandContext(t.Context(), "bash", "-c", script).CombinedOutput()
	if want := "complete -o default -F _shivactl shivactl\ndigits\ncreate\n"; err != nil || string(out) != want {
		t.Errorf("%v: got\n%s\nexpected\n%s", err, out, want)
	}
}
