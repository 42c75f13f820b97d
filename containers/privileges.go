package containers

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/shivad/shivad/scheduler/setting"
)

// Privileges restrict what the processes of a [Command] may do, compared with this process. All but
// the environment needs Linux. The zero value restricts only the environment, to what programs
// need.
type Privileges struct {
	// User is the user that they run as, by name or number, with the groups and the home directory
	// of that user; empty means the user of this process. Changing the user requires root, or
	// CAP_SETUID and CAP_SETGID, and CAP_KILL and CAP_SYS_PTRACE to end the processes and to
	// recognise their connections.
	User string
	// InheritEnv are the environment variables that they inherit from this process: names, in which
	// a final * matches any rest, so that "*" alone means all. PATH, LANG, LC_*, TZ, TMPDIR and
	// HOME are always inherited; HOME, USER and LOGNAME are those of User.
	InheritEnv []string
	// NewPrivileges lets them gain privileges by starting a program that has more, such as sudo.
	NewPrivileges bool
	// ReadOnly denies them all changes to the file system except below the directories Writable and
	// to devices. It requires Landlock (Linux 6.2). Such processes cannot map the arena's inputs,
	// and get them as bytes.
	ReadOnly bool
	Writable []string // absolute paths
	// The limits hold for each process; 0 means the limit of this process. Memory, in bytes, bounds
	// memory that a process may write and does not share (RLIMIT_DATA). Processes counts all
	// processes and threads of the user, so it needs a dedicated User. FileBytes is the largest
	// size of a file. With User the limits require CAP_SYS_RESOURCE, too.
	Memory    int64
	FileBytes int64
	OpenFiles int
	Processes int
}

// inheritedVariables are the variables that most programs need.
var inheritedVariables = []string{"PATH", "LANG", "LC_*", "TZ", "TMPDIR", "HOME"}

// Faults returns the faults of the settings, except for those that may go away, such as a missing
// directory.
func (p Privileges) Faults() (fs setting.Faults) {
	if p.User != "" {
		_, err := accountOf(p.User)
		fs.Check("user", err)
	}
	for _, name := range p.InheritEnv {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(strings.TrimSuffix(name, "*"), "*") {
			fs.Add("inherit_env", "%q is not the name of a variable, or a prefix followed by *", name)
		}
	}
	for _, dir := range p.Writable {
		if !filepath.IsAbs(dir) {
			fs.Add("writable", "%q is not an absolute path", dir)
		}
	}
	if len(p.Writable) > 0 && !p.ReadOnly {
		fs.Add("writable", "has no meaning without read_only")
	}
	setting.Between(&fs, "memory", setting.Bytes(p.Memory), 0, setting.MaxBytes)
	setting.Between(&fs, "file_bytes", setting.Bytes(p.FileBytes), 0, setting.MaxBytes)
	setting.Between(&fs, "open_files", p.OpenFiles, 0, maxCount)
	setting.Between(&fs, "processes", p.Processes, 0, maxCount)
	if p.Processes > 0 && p.User == "" {
		fs.Add("processes", "counts all processes of a user, so the container needs a user of its own")
	}
	fs.Check("", p.supported())
	return fs
}

// An account is a user of this machine.
type account struct {
	uid, gid uint32
	groups   []uint32
	name     string // like home, empty for a number that has no name on the machine
	home     string
}

// accountOf finds a user by name or number.
func accountOf(name string) (account, error) {
	u, err := user.Lookup(name)
	if err != nil {
		if u, err = user.LookupId(name); err != nil {
			n, wrong := strconv.ParseUint(name, 10, 32)
			if wrong != nil {
				return account{}, fmt.Errorf("%q is not a user of this machine: expected a name or a number", name)
			}
			return account{uid: uint32(n), gid: uint32(n)}, nil
		}
	}
	a := account{name: u.Username, home: u.HomeDir}
	groups, err := u.GroupIds()
	if err != nil {
		return account{}, fmt.Errorf("the groups of %q: %w", name, err)
	}
	for i, id := range slices.Concat([]string{u.Uid, u.Gid}, groups) {
		n, err := strconv.ParseUint(id, 10, 32)
		switch {
		case err != nil:
			return account{}, fmt.Errorf("%q has the id %q, expected a number of 32 bits", name, id)
		case i == 0:
			a.uid = uint32(n)
		case i == 1:
			a.gid = uint32(n)
		default:
			a.groups = append(a.groups, uint32(n))
		}
	}
	return a, nil
}

// environment returns the variables of this process that the children inherit.
func (p Privileges) environment() []string {
	patterns := slices.Concat(inheritedVariables, p.InheritEnv)
	list := slices.DeleteFunc(os.Environ(), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return !slices.ContainsFunc(patterns, func(pattern string) bool {
			begin, any := strings.CutSuffix(pattern, "*")
			return name == pattern || any && strings.HasPrefix(name, begin)
		})
	})
	if a, err := accountOf(p.User); err == nil && p.User != "" && a.name != "" {
		list = append(list, "HOME="+a.home, "USER="+a.name, "LOGNAME="+a.name)
	}
	return list
}
