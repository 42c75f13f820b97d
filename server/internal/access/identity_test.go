package access

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/shivad/shivad/server/internal/fault"
)

func declare(name, token string, may ...string) Declaration {
	d := Declaration{Name: name, May: may}
	if token != "" {
		sum := sha256.Sum256([]byte(token))
		d.Tokens = []string{hex.EncodeToString(sum[:])}
	}
	return d
}

func registry(list ...Declaration) *Identities {
	r := new(Identities)
	r.Replace(list)
	return r
}

func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		may   string
		right Right
		name  string
		want  bool
	}{
		{"infer", Infer, "anything", true}, {"infer", Feedback, "anything", false}, {"infer:cat", Infer, "cat", true},
		{"infer:cat", Infer, "cats", false},
		{"infer:cat*", Infer, "cats", true}, {"infer:*", Infer, "x", true}, {"infer:*cat", Infer, "cats", false},
		{"infer:c[au]t", Infer, "cut", true}, {"infer:c?t", Infer, "coat", false},
		{"serve", Serve, "cat/1", true}, {"serve:cat", Serve, "cat/1", true}, {"serve:cat", Serve, "cats/1", false},
		{"serve:cat/2*", Serve, "cat/20", true},
		{"serve:cat/2*", Serve, "cat/1", false}, {"serve:*/1", Serve, "dog/1", true}, {"serve:*", Serve, "dog/1", true},
		{"serve:ca*", Serve, "dog/cat", false},
		{"admin:read", AdminRead, "", true}, {"admin:read", AdminWrite, "", false},
		{"admin:write", AdminRead, "", true}, {"admin:write", AdminWrite, "", true}, {"admin:write", Infer, "cat", false},
	} {
		d := declare("a", "token", c.may)
		if err := d.Faults().Err(); err != nil {
			t.Fatal(err)
		}
		if got := d.identity().May(c.right, c.name); got != c.want {
			t.Errorf("%s: %s of %q is %t", c.may, c.right, c.name, got)
		}
	}
}

// The identity for each kind of credentials, also after a change of the table.
func TestWho(t *testing.T) {
	var none *Identity
	if err := errors.Join(none.Enter(), none.Check(AdminWrite, ""), none.Check(Serve, "m/1"), none.CheckAny(Load),
		none.CheckSees("m")); err != nil {
		t.Errorf("without identities: %v", err)
	}
	r := new(Identities)
	shown := Token("one")
	if r.Who(&shown) != nil || r.Who(nil) != nil || r.Declared() {
		t.Error("somebody is somebody without a declaration")
	}
	r.Replace([]Declaration{declare("a", "one", "infer:cat")})
	a := r.Who(&shown)
	if a.Name() != "a" || a.Enter() != nil || !errors.Is(a.Check(Infer, "dog"), fault.ErrPermissionDenied) {
		t.Errorf("%+v", a)
	}
	for what, values := range map[string][]string{"nothing": nil, "another": {"Bearer two"}, "no scheme": {"one"},
		"two": {"Bearer one", "Bearer one"}, "a space": {"Bearer one "}, "empty": {"Bearer "},
		"long": {"Bearer " + strings.Repeat("x", 1<<20)}} {
		s := Bearer(InHeader, values)
		who := r.Who(&s)
		if who == nil || !errors.Is(who.Enter(), fault.ErrUnauthenticated) || who.May(Infer, "cat") ||
			who.MayAny(Infer) || who.Sees("cat") || !errors.Is(who.Check(AdminRead, ""), fault.ErrUnauthenticated) {
			t.Errorf("%s: %+v", what, who)
		}
	}
	for _, header := range []string{"Bearer one", "bearer one", "BEARER  one"} {
		if s := Bearer(InHeader, []string{header}); r.Who(&s) != a {
			t.Errorf("%q is %+v", header, r.Who(&s))
		}
	}
	r.Replace([]Declaration{declare("b", "one", "feedback"), declare("anonymous", "", "infer:free")})
	if b := r.Who(&shown); b.Name() != "b" || b.May(Infer, "cat") {
		t.Errorf("after a reload: %+v", b)
	}
	if s := r.Who(nil); s.Enter() != nil || s.Check(Infer, "free") != nil ||
		!errors.Is(s.Check(Infer, "cat"), fault.ErrUnauthenticated) {
		t.Errorf("anonymous: %+v", s)
	}
	if s := Token("two"); r.Who(&s).Enter() == nil {
		t.Error("an unknown token is anonymous")
	}
	r.Replace(nil)
	if r.Who(&shown) != nil {
		t.Error("somebody after the last declaration has gone")
	}
}

func TestUnmatched(t *testing.T) {
	r := registry(declare("a", "one", "infer", "infer:cat*", "infer:dgo", "serve:cat/9", "serve:dgo/1", "admin:read"),
		declare("b", "two", "load:cat"))
	got := r.Unmatched([]string{"cats", "dog", "cat"})
	if len(got) != 1 || strings.Join(got["a"], " ") != "infer:dgo serve:dgo/1" {
		t.Errorf("%v", got)
	}
}

// The checks made for each request allocate nothing.
func TestWhoAllocates(t *testing.T) {
	r := registry(declare("a", "one", "infer:cat*"))
	shown := Token("one")
	if n := testing.AllocsPerRun(100, func() {
		who := r.Who(&shown)
		if who.Check(Infer, "cats") != nil {
			t.Fail()
		}
		r.Who(nil)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkWho(b *testing.B) {
	none, some := new(Identities), registry(declare("a", "one", "infer:cat*"))
	token := Token("one")
	for _, c := range []struct {
		name  string
		r     *Identities
		shown *Credentials
	}{{"none declared", none, nil}, {"nothing shown", some, nil}, {"a connection's", some, &token}} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				c.r.Who(c.shown)
			}
		})
	}
	b.Run("a header", func(b *testing.B) {
		values := []string{"Bearer one"}
		for b.Loop() {
			shown := Bearer(InHeader, values)
			some.Who(&shown)
		}
	})
}
