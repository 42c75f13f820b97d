package regions

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/shiva/hosttest"
)

// made returns a registry of at most two regions, and its directory with files of 64 bytes.
func made(t *testing.T, files ...string) (*Registry, string) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range files {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, 64), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	g := New(Settings{Directory: dir, RegionBytes: 64, Regions: 2}, nil)
	t.Cleanup(g.Close)
	return g, dir
}

// giveAway gives a file to another user.
func giveAway(t *testing.T, path string) {
	t.Helper()
	if os.Geteuid() != 0 {
		hosttest.Lacks(t, "only root may give files away")
	}
	if err := os.Chown(path, 12345, -1); err != nil {
		t.Fatal(err)
	}
}

func names(t *testing.T, g *Registry) (list []string) {
	t.Helper()
	all, err := g.Status(Client{}, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		list = append(list, r.Name)
	}
	return list
}

// Anything but a regular file of a permitted owner is refused for what it is, without being opened.
func TestWhatIsNoRegion(t *testing.T) {
	g, dir := made(t, "file", "foreign")
	giveAway(t, filepath.Join(dir, "foreign"))
	path := func(name string) string { return filepath.Join(dir, name) }
	for name, err := range map[string]error{
		"link": os.Symlink(path("file"), path("link")), "directory": os.Mkdir(path("directory"), 0o700),
		"fifo": unix.Mkfifo(path("fifo"), 0o600),
	} {
		if err != nil {
			t.Fatal(name, err)
		}
	}
	s := g.Settings()
	s.Owners = []uint32{uint32(os.Geteuid())}
	g.Configure(s)
	// Making a device needs a right that containers lack. An existing one stands for all.
	for _, c := range []struct {
		key       string
		condition error
	}{
		{"/file", nil}, {"/link", scheduler.ErrInvalidInput}, {"/directory", scheduler.ErrInvalidInput},
		{"/fifo", scheduler.ErrInvalidInput}, {"/foreign", fault.ErrPermissionDenied},
		{"/none", scheduler.ErrNotFound}, {"/", scheduler.ErrInvalidInput}, {"/.", scheduler.ErrInvalidInput},
		{"/..", scheduler.ErrInvalidInput}, {"/../x", scheduler.ErrInvalidInput},
		{"/directory/x", scheduler.ErrInvalidInput}, {"/fi\x00le", scheduler.ErrInvalidInput},
		{"/" + string(make([]byte, 300)), scheduler.ErrInvalidInput},
	} {
		began := time.Now()
		err := g.Register(Client{}, Region{Name: "r", Key: c.key, Size: 1})
		if !errors.Is(err, c.condition) || c.condition == nil && err != nil || time.Since(began) > 5*time.Second {
			t.Errorf("%q: %v, expected %v", c.key, err, c.condition)
		}
		_ = g.Unregister(Client{}, "r")
	}
	s.Directory, s.Owners = "/dev", nil
	g.Configure(s)
	if err := g.Register(Client{}, Region{Name: "r", Key: "/null", Size: 1}); !errors.Is(err,
		scheduler.ErrInvalidInput) {
		t.Errorf("a device: %v", err)
	}
}

// A region that clients left behind is dropped to make room, and one in use is not.
func TestPlacesComeBack(t *testing.T) {
	g, dir := made(t, "a", "b", "c")
	for _, name := range []string{"a", "b"} {
		if err := g.Register(Client{}, Region{Name: name, Key: name, Size: 64}); err != nil {
			t.Fatal(err)
		}
		g.regions[regionID{name: name}].used.Store(time.Now().Add(-2 * forgetAfter).UnixNano())
	}
	third := Region{Name: "c", Key: "c", Size: 64}
	if err := g.Register(Client{}, third); !errors.Is(err, scheduler.ErrOverloaded) {
		t.Errorf("files that are there: %v", err)
	}
	for _, name := range []string{"a", "b"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	h, err := g.HoldInput(Client{}, "x", parameter.Place{Region: "a", Size: 64})
	if err == nil {
		err = h.read(make([]byte, 64))
	}
	if h.Release(); err != nil {
		t.Errorf("a file that was removed: %v", err)
	}
	if err := g.Register(Client{}, third); err != nil || len(names(t, g)) != 2 || g.regions[regionID{name: "a"}] == nil {
		t.Errorf("a place that nobody uses: %v; there are %q", err, names(t, g))
	}
}

// New settings unregister the regions that they do not permit, and a closed region leaves no
// descriptor.
func TestConfigure(t *testing.T) {
	before := descriptors(t)
	g, _ := made(t, "small", "large")
	for name, size := range map[string]int64{"small": 8, "large": 64} {
		if err := g.Register(Client{}, Region{Name: name, Key: name, Size: size}); err != nil {
			t.Fatal(err)
		}
	}
	s := g.Settings()
	s.RegionBytes, s.Regions = 8, 1
	if g.Configure(s); len(names(t, g)) != 1 {
		t.Errorf("of at most 8 bytes there are %q", names(t, g))
	}
	s.Owners = []uint32{uint32(os.Geteuid()) + 1}
	if g.Configure(s); len(names(t, g)) != 0 {
		t.Errorf("of another owner there are %q", names(t, g))
	}
	if err := g.Register(Client{}, Region{Name: "small", Key: "small", Size: 8}); !errors.Is(err,
		fault.ErrPermissionDenied) {
		t.Error(err)
	}
	if n := descriptors(t); n != before {
		t.Errorf("%d descriptors are open, %d before", n, before)
	}
}

// A file belongs to the user on a Unix socket who may open it, and to identities with a pattern for
// its key. Of several identities that nothing else tells apart it belongs to none.
func TestWhoseFile(t *testing.T) {
	one, two := map[string][]string{"a": nil}, map[string][]string{"a": {"/mine-*"}, "b": nil}
	for _, c := range []struct {
		identities      map[string][]string
		identity, where string
		key             string
		mode            uint32
		reads, writes   bool
	}{
		{nil, "", "127.0.0.1", "/x", 0o600, true, true},
		{nil, "", "uid=1000", "/x", 0o600, true, true},
		{nil, "", "uid=0", "/x", 0, true, true},
		{nil, "", "uid=1001", "/x", 0o660, false, false},
		{nil, "", "uid=1001", "/x", 0o604, true, false},
		{nil, "", "uid=1001", "/x", 0o606, true, true},
		{nil, "", "uid=1000", "/x", 0o466, true, false},
		{nil, "", "uid=1000", "/x", 0o066, false, false},
		{one, "a", "127.0.0.1", "/x", 0o600, true, true},
		{one, "a", "uid=1001", "/x", 0o600, false, false},
		{two, "a", "127.0.0.1", "/x", 0o666, false, false},
		{two, "a", "127.0.0.1", "mine-7", 0o600, true, true},
		{two, "a", "uid=1001", "/mine-7", 0o600, true, true},
		{two, "b", "127.0.0.1", "/mine-7", 0o666, false, false},
		{two, "b", "127.0.0.1", "/x", 0o666, false, false},
		{two, "b", "uid=unknown", "/x", 0o666, false, false},
		{two, "b", "uid=1000", "/x", 0o600, true, true},
	} {
		s := Settings{Identities: c.identities, Declared: c.identities != nil}
		m := Client{Address: c.where}.claims(c.key)
		m.identity = c.identity
		if reads, writes := s.belongs(m, 1000, c.mode|unix.S_IFREG); reads != c.reads || writes != c.writes {
			t.Errorf("%v: %t, %t", c, reads, writes)
		}
	}
	g, dir := made(t, "x", "y")
	for name, mode := range map[string]os.FileMode{"x": 0o600, "y": 0o604} {
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	stranger := Client{Address: "uid=54321"}
	if err := g.Register(stranger, Region{Name: "x", Key: "x", Size: 64}); !errors.Is(err, fault.ErrPermissionDenied) {
		t.Errorf("another user's file: %v", err)
	}
	if err := g.Register(stranger, Region{Name: "y", Key: "y", Size: 64}); err != nil {
		t.Error(err)
	}
	if h, err := g.HoldOutput(stranger, "o", parameter.Place{Region: "y", Size: 64}); !errors.Is(err,
		fault.ErrPermissionDenied) {
		h.Release()
		t.Errorf("an output in a file that its client may only read: %v", err)
	}
}

// Registered regions are counted, and refusals by reason.
func TestUsage(t *testing.T) {
	g, dir := made(t, "a", "b", "foreign")
	giveAway(t, filepath.Join(dir, "foreign"))
	s := g.Settings()
	s.Owners = []uint32{uint32(os.Geteuid())}
	g.Configure(s)
	for _, r := range []Region{
		{Name: "a", Key: "a", Size: 64}, {Name: "b", Key: "b", Offset: 8, Size: 8},
		{Name: "c", Key: "a", Size: 1}, // full
		{Name: "a", Key: "a", Size: 1}, // invalid, and so are the next two
		{Name: "", Key: "a", Size: 1},
		{Name: "c", Key: "a", Offset: -1, Size: 1},
		{Name: "c", Key: "a", Size: 65},
	} {
		_ = g.Register(Client{Address: "127.0.0.1"}, r)
	}
	_ = g.Register(Client{Address: "192.0.2.1"}, Region{Name: "c", Key: "a", Size: 1})
	if err := g.Unregister(Client{}, "b"); err != nil {
		t.Fatal(err)
	}
	_ = g.Register(Client{}, Region{Name: "c", Key: "foreign", Size: 1})
	_ = g.Register(Client{}, Region{Name: "c", Key: "none", Size: 1})
	want := Usage{Regions: 1, Limit: 2, Bytes: 64,
		Refused: map[string]uint64{"off": 0, "denied": 2, "missing": 1, "too_large": 1, "full": 1, "invalid": 3}}
	if u := g.Usage(); !reflect.DeepEqual(u, want) {
		t.Errorf("%v, expected %v", u, want)
	}
	g.Close()
	_ = g.Register(Client{}, Region{Name: "c", Key: "a", Size: 1})
	want.Regions, want.Limit, want.Bytes, want.Refused["off"] = 0, 0, 0, 1
	if u := g.Usage(); !reflect.DeepEqual(u, want) {
		t.Errorf("off: %v, expected %v", u, want)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/" + strconv.Itoa(os.Getpid()) + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
