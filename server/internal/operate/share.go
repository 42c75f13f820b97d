package operate

import (
	"fmt"
	"maps"
	"strconv"

	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/capacity"
	"github.com/shivad/shivad/shiva/plural"
)

// threadVariables tell numeric libraries how many threads to start in a process. Each starts one
// per processor of the machine otherwise, whatever the cgroup allows and however many processes do
// the same: four replicas on two processors were three to five times slower than one. SHIVA_CPUS is
// for the SDKs, and for models that start threads themselves.
var threadVariables = []string{
	"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "NUMEXPR_NUM_THREADS",
	"VECLIB_MAXIMUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS", "TF_NUM_INTRAOP_THREADS",
	"OPENCV_FOR_THREADS_NUM", "SHIVA_CPUS",
}

// A share is how many processors a process should use.
type share struct {
	count int
	// declared: the [[container]] says so. Otherwise variables that the process inherits prevail.
	declared bool
	// all: these are all that a library sees anyway, and it may know better which of them to use.
	all bool
}

// shareOf returns what cpus of a [[container]] says, else an equal part of the available processors
// for each of its processes. Other containers do not count: most models are idle most of the time.
func shareOf(c config.Container, available, visible int) share {
	if c.CPUs > 0 {
		return share{count: c.CPUs, declared: true}
	}
	n := max(1, available/max(1, c.Replicas.Max))
	return share{count: n, all: n >= visible}
}

// environment returns the variables that a process gets in any case, and those that it gets unless
// it inherits them. Those of the [[container]] prevail.
func (s share) environment(c config.Container) (env, fallback map[string]string) {
	shares := map[string]string{}
	for _, name := range threadVariables {
		if !s.all || name == "SHIVA_CPUS" {
			shares[name] = strconv.Itoa(s.count)
		}
	}
	if !s.declared {
		return c.Env, shares
	}
	maps.Copy(shares, c.Env)
	return shares, nil
}

// Crowded says that the running processes want more processors than there are, for the end of a
// sentence; "": they do not. More processes then share what there is, and answer no more.
func (ps *Processes) Crowded() string {
	wanted, count := 0, 0
	for _, p := range ps.all() {
		n := p.count()
		count += n
		wanted += n * max(1, p.table().CPUs)
	}
	if wanted <= ps.machine.cores {
		return ""
	}
	return fmt.Sprintf("the server's %s %s, and it may use %d",
		plural.Words(count, "process wants", "processes want"), plural.Of(wanted, "processor"),
		ps.machine.cores)
}

// share returns the share of each process of a container.
func (ps *Processes) share(c config.Container) share {
	return shareOf(c, ps.machine.cores, capacity.VisibleProcessors())
}
