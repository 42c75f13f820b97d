package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/shiva/hosttest"
)

func TestOnlyInFile(t *testing.T) {
	var keys []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[config.Model]()) {
		if f.Tag.Get("file") != "" {
			keys = append(keys, f.Tag.Get("toml"))
		}
	}
	if slices.Sort(keys); !slices.Equal(keys, onlyInFile) {
		t.Errorf("only the file can change %q, and completion leaves out %q", keys, onlyInFile)
	}
}

func TestCompletion(t *testing.T) {
	_, at := fake(t, "tcp")
	if code := run(context.Background(), []string{"apps", "create", "digits-app", "--model", "digits", "--admin", at},
		nil, io.Discard, io.Discard); code != exitOK {
		t.Fatal(code)
	}
	profilesAre(t, "[home]\n[production]\n")
	t.Setenv(adminEnv, at)
	for _, c := range []struct{ words, want string }{
		{"mo", "models"},
		{"co", "completion config containers"},
		{"pro", "profiles"},
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
		{"apps create new --policy=exp4 --model digits/", "digits/1 digits/2"},
		{"apps delete --json d", "digits-app"},
		{"models set dig", "digits"},
		{"models set-version digits ", "1 2"},
		{"models set digits ", "keep= slots="},
		{"models set digits sl", "slots="},
		{"models set digits slots=3 ", "keep="},
		{"models set digits keep=", "keep=all keep=latest"},
		{"models set digits keep=l", "keep=latest"},
		{"models set nobody ", ""},
		{"models reset digits ", "keep slots"},
		{"models reset digits slots ", "keep"},
		{"apps create new --param ", "eta= model= weights="},
		{"config tc", "tcp.listen tcp.loops"},
		{"logs --level w", "warn"},
		{"apps delete digits-app --y", "--yes"},
		{"models --wa", "--watch"},
		{"models --watch dig", "digits"},
		{"explain dig", "digits digits-app"},
		{"history dig", "digits digits-app"},
		{"status --profile ", "home production"},
		{"links add digits-app ", "digits digits/1 digits/2 plain plain/1"},
		{"policies learned ", "digits-app"},
		{"policies ex", "exp4"},
		{"infer di", "digits digits-app digits/1 digits/2"},
		{"infer digits ", "FILES"},
		{"containers stop ", "digits iris"},
		{"completion z", "zsh"},
		{"bench digits --door ", "grpc rest tcp"},
		{"bench digits --keep ", "all latest"},
		{"bench digits --streams 4 --keep l", "latest"},
		{"apps create new --keep a", "all"},
		{"infer digits --door ", "FILES"}, // it has no such flag
		{"export ", "FILES"},
		{"frobnicate ", ""},
		{"--admin " + hosttest.Refusing(t) + " models di", ""},
	} {
		got, then := completed(t, strings.Split(c.words, " "))
		if want := strings.TrimSuffix(c.want, "FILES"); strings.Join(got, " ") != want {
			t.Errorf("%s: got %q, expected %s", c.words, got, want)
		}
		want := cobra.ShellCompDirectiveNoFileComp
		switch {
		case c.want == "FILES":
			want = cobra.ShellCompDirectiveDefault
		case strings.HasSuffix(c.want, "="):
			want |= cobra.ShellCompDirectiveNoSpace
		}
		if then != want {
			t.Errorf("%s: the shell is told %v, expected %v", c.words, then, want)
		}
	}
}

// completed returns what a shell is told of the last word: the candidates, in order, and what to do
// with them.
func completed(t *testing.T, words []string) (candidates []string, then cobra.ShellCompDirective) {
	t.Helper()
	var out bytes.Buffer
	if code := run(t.Context(), append([]string{cobra.ShellCompNoDescRequestCmd}, words...), nil, &out,
		io.Discard); code != exitOK {
		t.Errorf("%s: exit %d", words, code)
	}
	candidates = strings.Fields(out.String())
	if len(candidates) == 0 {
		t.Fatalf("%s: no answer", words)
	}
	last := len(candidates) - 1
	n, err := strconv.Atoi(strings.TrimPrefix(candidates[last], ":"))
	if err != nil {
		t.Fatalf("%s: %q: %v", words, &out, err)
	}
	slices.Sort(candidates[:last])
	return candidates[:last], cobra.ShellCompDirective(n)
}

// The server's variables hold for completion, too.
func TestCompletionByVariables(t *testing.T) {
	_, at := fake(t, "tcp")
	t.Setenv(adminEnv, at)
	for _, words := range [][]string{{"models", "di"}, {"models", "--profile", "absent", "di"}} {
		got, _ := completed(t, words)
		if want := map[int]string{2: "digits", 4: ""}[len(words)]; strings.Join(got, " ") != want {
			t.Errorf("%v: got %q, expected %q", words, got, want)
		}
	}
}

// Each shell has a script that asks shivactl itself.
func TestCompletionScripts(t *testing.T) {
	for _, shell := range shells {
		var out bytes.Buffer
		if code := run(t.Context(), []string{"completion", shell.name}, nil, &out, io.Discard); code != exitOK ||
			!strings.Contains(out.String(), cobra.ShellCompRequestCmd) {
			t.Errorf("%s: exit %d:\n%s", shell.name, code, &out)
		}
		script := out.String()
		out.Reset()
		run(t.Context(), []string{"completion", shell.name, "--json"}, nil, &out, io.Discard)
		var shown struct{ Shell, Script string }
		if err := json.Unmarshal(out.Bytes(), &shown); err != nil || shown.Shell != shell.name ||
			shown.Script != script {
			t.Errorf("%s: %v: %s", shell.name, err, &out)
		}
	}
}
