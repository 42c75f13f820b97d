package main

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"
)

// manager is the service manager that started the process and expects notifications: systemd with
// Type=notify, or one with the same protocol (sd_notify(3)). The zero value means no manager.
type manager struct {
	tell     func(state string)
	watchdog time.Duration // the manager ends a process that is silent for this long; 0: never
}

// fromEnvironment finds the manager, and removes its variables from the environment: containers are
// not services of the manager.
func fromEnvironment(log *slog.Logger) (m manager) {
	socket, watchdog, pid := os.Getenv("NOTIFY_SOCKET"), os.Getenv("WATCHDOG_USEC"), os.Getenv("WATCHDOG_PID")
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		os.Unsetenv(name)
	}
	if socket == "" {
		return m
	}
	if pid == "" || pid == strconv.Itoa(os.Getpid()) {
		if usec, err := strconv.ParseInt(watchdog, 10, 64); err == nil && usec > 0 {
			m.watchdog = time.Duration(usec) * time.Microsecond
		}
	}
	m.tell = func(state string) {
		c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
		if err == nil {
			defer c.Close()
			// A manager that does not read must not hold up a reload or a shutdown.
			_ = c.SetWriteDeadline(time.Now().Add(time.Second))
			_, err = c.Write([]byte(state))
		}
		if err != nil {
			log.Warn("the service manager was not told", "state", state, "error", err)
		}
	}
	return m
}

// say tells the manager a state, with a text for "systemctl status".
func (m manager) say(state, words string) {
	if m.tell != nil {
		m.tell(state + "\nSTATUS=" + words)
	}
}

// stopping tells the manager that the process will end within limit. Until then the manager does
// not kill it, even if its own settings allow less time.
func (m manager) stopping(limit time.Duration) {
	m.say(fmt.Sprintf("STOPPING=1\nEXTEND_TIMEOUT_USEC=%d", limit.Microseconds()), "draining")
}

// watch tells the manager twice per watchdog interval that the process is alive, until stop is
// closed. Each time it calls ready first, which takes the locks that requests take: a server stuck
// in one stays silent, and is restarted. A server is not restarted for not being ready.
func (m manager) watch(ready func() (bool, string), stop <-chan struct{}) {
	if m.tell == nil || m.watchdog == 0 {
		return
	}
	tick := time.NewTicker(m.watchdog / 2)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			words := "serving"
			if ok, reason := ready(); !ok {
				words = "not ready: " + reason
			}
			m.say("WATCHDOG=1", words)
		case <-stop:
			return
		}
	}
}
