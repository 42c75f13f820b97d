package server

import (
	"os"
	"runtime"
)

// giveLoopsTheirOwn lets as many threads more run Go code as there are event loops. A loop
// waits in epoll_wait, which the runtime takes for a short system call: the thread keeps its
// right to run until sysmon takes it away, up to 10 ms later. With one loop per core, as many
// as may run by default, answers of containers and timers waited for that: at half load, the
// p50 of a model that takes 13 ms was 32 ms instead of 15. GOMAXPROCS in the environment goes
// first.
func giveLoopsTheirOwn(loops int) {
	if loops == 0 {
		loops = runtime.NumCPU()
	}
	if want := runtime.NumCPU() + loops; os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) < want {
		runtime.GOMAXPROCS(want)
	}
}
