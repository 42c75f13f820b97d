package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/shivad/shivad/shiva/hosttest"
)

// TestMain runs shivactl itself for the shells of these tests.
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
	profilesAre(t, "[home]\n[production]\n")
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
		{"apps create new --policy = e", "exp4"},
		{"apps create new --policy =", "exp4 single"},
		{"apps create new --policy=exp4 --model digits/", "digits/1 digits/2"},
		{"apps delete --json d", "digits-app"},
		{"models set dig", "digits"},
		{"models set-version digits ", "1 2"},
		{"models set digits ", "keep= slots="},
		{"models set digits sl", "slots="},
		{"models set digits slots=3 ", "keep="},
		{"models set digits slots = 3 ", "keep="},
		{"models set digits keep=", "keep=all keep=latest"},
		{"models set digits keep=l", "keep=latest"},
		{"models set digits keep =", "all latest"},
		{"models set digits keep = l", "latest"},
		{"models set digits slots =", ""},
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
		if c.want == "--all" { // after a command that does not exist: commands
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

// The server's variables hold for completion, too.
func TestCompletionByVariables(t *testing.T) {
	_, at := fake(t, "tcp")
	t.Setenv(adminEnv, at)
	for _, words := range [][]string{{"models", "di"}, {"models", "--profile", "absent", "di"}} {
		var out bytes.Buffer
		code := run(t.Context(), append([]string{"__complete"}, words...), nil, &out, io.Discard)
		if want := map[int]string{2: "digits\n", 4: ""}[len(words)]; code != exitOK || out.String() != want {
			t.Errorf("%v: exit %d, %q, expected %q", words, code, &out, want)
		}
	}
}
