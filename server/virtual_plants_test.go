//go:build plants

package server

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var plantsFlag = flag.Int("plants", 500, "TestPlantedBugs plants each bug, and plays so many seeds at most to find it")

// A plant is a bug that TestSeeds must find: a text in a file and its replacement, in which PLANTED
// is true while the bug is planted. The files themselves stay unchanged: an overlay gives the
// compiler changed copies.
type plant struct{ name, file, old, new string }

var plants = []plant{
	{"forgotten retry", "scheduler/culprit.go",
		"\tcase len(again) > 0:\n",
		"\tcase len(again) > 0 && !PLANTED:\n"},
	{"tried again for ever", "scheduler/culprit.go",
		"\t\ts.record.losses++\n\t\ttrusted := c.sources.trusts(r.Source)\n",
		"\t\ts.record.losses++\n\t\ttrusted := PLANTED || c.sources.trusts(r.Source)\n\t\tif PLANTED {\n\t\t\ts.record.losses = 1\n\t\t}\n"},
	{"deadline of what executes forgotten", "scheduler/core.go",
		"\t\t\tb.tightest = c.expireSpans(b.spans, b.tightest, now, fx)\n",
		"\t\t\tif !PLANTED {\n\t\t\t\tb.tightest = c.expireSpans(b.spans, b.tightest, now, fx)\n\t\t\t} else {\n\t\t\t\tb.tightest = never\n\t\t\t}\n"},
	{"rows of a split request from the wrong place", "scheduler/answer.go",
		"lo := b.length(i, 0, from)\n",
		"lo := b.length(i, 0, from)\n\t\tif PLANTED {\n\t\t\tlo = 0\n\t\t}\n"},
	{"answered twice", "server/internal/tcp/session.go",
		"\t\tl.encode(c)\n",
		"\t\tl.encode(c)\n\t\tif PLANTED && c.next != nil && c.next.phase == answered {\n\t\t\tl.encode(c)\n\t\t}\n"},
	{"lost wake-up", "server/internal/tcp/loop.go",
		"\t\tl.awake = len(l.ready) > 0\n",
		"\t\tl.awake = len(l.ready) > 0 || PLANTED && len(l.sessions) > 1\n"},
	{"answers as they come", "server/internal/tcp/session.go",
		"\tif c == s.head {\n\t\ts.queue()\n",
		"\tif PLANTED && c != s.head && c.next == nil && s.head.next == c && s.head.phase != answered {\n\t\ts.head.next, c.next, s.tail, s.head = nil, s.head, s.head, c\n\t}\n\tif c == s.head {\n\t\ts.queue()\n"},
	{"memory of a client that is gone", "server/internal/tcp/leave.go",
		"\t\tcase c.phase != inFlight:\n\t\t\ts.loop.freeCall(c)\n",
		"\t\tcase c.phase != inFlight:\n\t\t\tif !PLANTED {\n\t\t\t\ts.loop.freeCall(c)\n\t\t\t}\n"},
	{"quota leak", "server/internal/access/use.go",
		"\t\t\ta.requests.end(1)\n",
		"\t\t\tif !PLANTED || u.bytes < 100 {\n\t\t\t\ta.requests.end(1)\n\t\t\t}\n"},
	{"rights of others", "server/internal/gate/view.go",
		"\tif who == nil {\n\t\treturn all\n",
		"\tif who == nil || PLANTED {\n\t\treturn all\n"},
	{"body of a client that is gone", "server/internal/rest/body.go",
		"\tif b.buf != nil {\n\t\tb.buf.Release()\n",
		"\tif b.buf != nil {\n\t\tif !PLANTED {\n\t\t\tb.buf.Release()\n\t\t}\n"},
	{"answer of a call that was given up", "server/internal/predict/infer.go",
		"\t\td.gate.Cancel(&c.gate)\n\t\t<-c.done\n",
		"\t\tif PLANTED {\n\t\t\treturn\n\t\t}\n\t\td.gate.Cancel(&c.gate)\n\t\t<-c.done\n"},
	{"batches larger than declared", "scheduler/replica.go",
		"\tr.max = c.maxBatch(r.declared)\n",
		"\tr.max = c.maxBatch(r.declared)\n\tif PLANTED {\n\t\tr.max++\n\t}\n"},
	{"stopped before the answers have left", "server/internal/tcp/leave.go",
		"\tif s.head != nil || s.outbound.first != nil {\n",
		"\tif s.head != nil && !PLANTED || s.outbound.first != nil {\n"},
	{"two frames in one batch", "scheduler/turn.go",
		"\t\tif f := it.req.Frame; f != nil {\n\t\t\tf.stream.cut = ss.cuts\n",
		"\t\tif f := it.req.Frame; f != nil && !PLANTED {\n\t\t\tf.stream.cut = ss.cuts\n"},
	{"one frame too many waits", "scheduler/stream.go",
		"\t\t\tif n++; n > keep {\n",
		"\t\t\tif n++; n > keep && !PLANTED || n > keep+1 {\n"},
	{"frames answered as they are executed", "scheduler/stream.go",
		"\treturn s.MayLeave(&f.node) ||",
		"\treturn PLANTED || s.MayLeave(&f.node) ||"},
	{"wake-up that comes late", "scheduler/model.go",
		"\tfx, now := m.begin()\n\tm.armed = never\n",
		"\tfx, now := m.begin()\n\tif PLANTED && now-m.armed > int64(20*time.Millisecond) {\n\t\tm.end(fx, now)\n\t\treturn\n\t}\n\tm.armed = never\n"},
	{"rest of what TLS has written", "server/internal/tcp/tls.go",
		"\tif c.pending = c.pending[n:]; len(c.pending) == 0 {\n",
		"\tif c.pending = c.pending[n:]; PLANTED && n > 0 {\n\t\tc.pending = nil\n\t}\n\tif len(c.pending) == 0 {\n"},
	{"certificates of before", "server/certificates.go",
		"\tcs.current.Store(&read)\n",
		"\tif !PLANTED || old == nil {\n\t\tcs.current.Store(&read)\n\t}\n"},
	{"rights of before", "server/internal/access/identities.go",
		"\tif t == s.table {",
		"\tif t == s.table || PLANTED && s.table != nil {"},
	{"containers that may not serve", "server/internal/operate/sessions.go",
		"func (ss *Sessions) Review() { ss.Listener().Review() }\n",
		"func (ss *Sessions) Review() {\n\tif !PLANTED {\n\t\tss.Listener().Review()\n\t}\n}\n"},
	{"default version of before", "server/internal/operate/settings.go",
		"\ts.mu.Unlock()\n\ts.Read()\n\treturn before\n",
		"\ts.mu.Unlock()\n\tif !PLANTED {\n\t\ts.Read()\n\t}\n\treturn before\n"},
	{"one more than the quota", "server/internal/access/account.go",
		"most > 0 && n > most {\n\t\ta.requests.end(1)\n",
		"most > 0 && n > most && !(PLANTED && n == most+1) {\n\t\ta.requests.end(1)\n"},
	{"three bursts at once", "server/internal/access/account.go",
		"\t\tif again := wait(paid, burst, now); again > 0 {\n",
		"\t\tif again := wait(paid, burst, now); again > 0 && !(PLANTED && again < 2*burst) {\n"},
	{"feedback learned twice", "server/state/memory.go",
		"\tif applied && id != \"\" &&",
		"\tif applied && !PLANTED && id != \"\" &&"},
	{"rows of an old container's answer", "containers/v2.go",
		"\t\trest = rest[n:]\n",
		"\t\tif rest = rest[n:]; PLANTED && i == 2 {\n\t\t\treturn nil\n\t\t}\n"},
	{"right to see, to change", "server/internal/operate/handler.go",
		"\tcase n == needRead || n == needRight && method == http.MethodGet:\n",
		"\tcase n == needRead || n == needRight && (method == http.MethodGet || PLANTED):\n"},
	{"refusals that the audit lacks", "server/internal/operate/handler.go",
		"t.need == needRight && !t.unaudited {\n",
		"t.need == needRight && !t.unaudited && !PLANTED {\n"},
	{"quotas of addresses", "server/internal/access/identity.go",
		"\tcase i == nil || i.account == nil:\n",
		"\tcase PLANTED && i == nil:\n\t\treturn Payers{}\n\tcase i == nil || i.account == nil:\n"},
	{"processes of what was unloaded", "server/internal/operate/process.go",
		"\terr := s.Close()\n",
		"\tvar err error\n\tif !PLANTED || p.ended {\n\t\terr = s.Close()\n\t}\n"},
	{"loaded by whoever may ask", "server/internal/predict/repository.go",
		"\terr := s.view.Who().Check(access.Load, model)\n",
		"\terr := s.view.Who().Check(access.Load, model)\n\tif PLANTED {\n\t\terr = s.view.Who().CheckAny(access.Infer)\n\t}\n"},
	{"region that is not forgotten", "server/internal/regions/registry.go",
		"\t\tif one.identity == mine.identity && (name == \"\" || one == mine) {\n",
		"\t\tif one.identity == mine.identity && (name == \"\" || one == mine) && !PLANTED {\n"},
	{"outputs beyond the end of a file", "server/internal/regions/file.go",
		"\t} else if end := info.Size(); end < at+int64(len(b)) {\n",
		"\t} else if end := info.Size(); end < at+int64(len(b)) && !PLANTED {\n"},
	{"certificates of later", "server/internal/listen/certificates.go",
		"\tcase now.Before(c.NotBefore) && now.After(neverSet):\n",
		"\tcase now.Before(c.NotBefore) && now.After(neverSet) && !PLANTED:\n"},
	{"images whose time is over", "server/internal/frigate/detect.go",
		"\tr.Timeout = left\n",
		"\tif r.Timeout = left; PLANTED {\n\t\tr.Timeout += 100 * time.Millisecond\n\t}\n"},
	{"clock that was set back", "server/state/memory.go",
		"int64(now-at) < m.opts.IDLifetime.Milliseconds() {",
		"int64(now-at) < m.opts.IDLifetime.Milliseconds() && !(PLANTED && now < at) {"},
}

// planted is a package that the overlay adds, which tells which bug is planted.
const planted = "package plant\n\nimport \"os\"\n\nvar name = os.Getenv(\"SHIVA_PLANT\")\n\nfunc Is(bug string) bool { return name == bug }\n"

// overlay writes the changed files, and returns the path of an overlay file for go build, and the
// bugs that are in it: a bug cannot be planted any more when the text that it replaces has changed.
func overlay(t *testing.T) (path string, in []plant) {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	changed := map[string]string{filepath.Join(root, "shiva/plant/plant.go"): planted}
	for _, p := range plants {
		path := filepath.Join(root, p.file)
		text, again := changed[path]
		if !again {
			original, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			text = strings.Replace(string(original), "\nimport ", "\nimport shivaplant \"github.com/shivad/shivad/shiva/plant\"\nimport ", 1)
		}
		if n := strings.Count(text, p.old); n != 1 || !strings.Contains(p.new, "PLANTED") {
			t.Errorf("%s cannot be planted: %s has the text to replace %d times, not once: %q", p.name, p.file, n,
				p.old)
			continue
		}
		in = append(in, p)
		changed[path] = strings.Replace(text, p.old,
			strings.ReplaceAll(p.new, "PLANTED", "shivaplant.Is("+strconv.Quote(p.name)+")"), 1)
	}
	dir := t.TempDir()
	var files struct{ Replace map[string]string }
	files.Replace = make(map[string]string)
	for path, text := range changed {
		copied := filepath.Join(dir, strings.ReplaceAll(path, "/", "_"))
		if err := os.WriteFile(copied, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		files.Replace[path] = copied
	}
	list, err := json.Marshal(files)
	if err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(at, list, 0o600); err != nil {
		t.Fatal(err)
	}
	return at, in
}

// TestPlantedBugs shows that TestSeeds finds bugs: it plants one after the other in the server. It
// has a tag since a change of the text that a bug replaces is no fault: "make seeds" tells which.
func TestPlantedBugs(t *testing.T) {
	at, in := overlay(t)
	program := filepath.Join(t.TempDir(), "planted")
	if out, err := exec.Command("go", "test", "-c", "-vet=off", "-overlay", at, "-o", program, ".").
		CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	seed, panics := regexp.MustCompile(`TestSeeds\$' ./server -seed (\d+)`), regexp.MustCompile(`(?m)^panic: .*$`)
	for _, p := range append([]plant{{name: "none"}}, in...) {
		t.Run(p.name, func(t *testing.T) {
			c := exec.Command(program, "-test.run", "TestSeeds$", "-seeds", strconv.Itoa(*plantsFlag))
			c.Env = append(os.Environ(), "SHIVA_PLANT="+p.name)
			out, err := c.CombinedOutput()
			found, crash := seed.FindSubmatch(out), panics.Find(out)
			switch {
			case p.file == "" && err != nil:
				t.Errorf("without a bug: %v\n%s", err, out)
			case p.file == "":
			case err != nil && found != nil:
				t.Logf("found by seed %s", found[1])
			case err != nil && crash != nil: // without labels
				t.Logf("found by a crash: %s", crash)
			default:
				t.Errorf("%d seeds have not found it: %v\n%s", *plantsFlag, err, out)
			}
		})
	}
}
