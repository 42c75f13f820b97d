package operate

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Of each kind LogLinesASecond lines pass in a second, whatever logger they come from, and the rest
// is counted; what a peer chooses makes no kind, and lines for debugging have no bound.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text logText
		log := slog.New(LimitLog(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug}), "model"))
		count := func(words string) int { return strings.Count(text.String(), words) }
		for second := 1; second <= 2; second++ {
			for i := range 100 {
				log.Info("closing a connection", "peer", i)
				log.With("model", "a").WithGroup("g").Error("panic")
				log.Error("panic", "model", "b")
				log.Debug("much")
			}
			log.Warn("rare")
			for words, want := range map[string]int{`msg="closing a connection"`: LogLinesASecond,
				"msg=panic model=a": LogLinesASecond, "msg=panic model=b": LogLinesASecond, "msg=much": 100, "msg=rare": 1} {
				if got := count(words); got != second*want {
					t.Errorf("second %d: %d lines with %s, expected %d", second, got, words, second*want)
				}
			}
			if got := count("were dropped"); got != second-1 {
				t.Errorf("%d reports before the second is over", got)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if got := count(fmt.Sprintf("lines=%d such_as=panic", 3*(100-LogLinesASecond))); got != second {
				t.Errorf("%d reports of dropped lines:\n%s", got, &text)
			}
		}
		text.Reset()
		for i := range 1000 { // messages that are not constant, by mistake
			log.Info(fmt.Sprint("message ", i))
		}
		if got := count("message"); got != mostKinds+LogLinesASecond {
			t.Errorf("%d lines of a thousand kinds", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
	})
}

// A logText holds a log, which a timer writes to as well.
type logText struct {
	mu sync.Mutex
	strings.Builder
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Builder.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Builder.String()
}

// A flood of lines of a kind, or of the output of one container, pushes out itself alone.
func TestFloodLeavesOthers(t *testing.T) {
	j := NewJournal()
	log := slog.New(j.Handler(slog.DiscardHandler))
	log.Warn("a process ended")
	log.Info("container output", "container", "quiet", "line", "loaded")
	for i := range 3 * mostEntries {
		log.Info("closing a connection", "peer", i)
		log.Info("container output", "container", "loud", "line", strings.Repeat("x", 1000))
	}
	log.Info("goes on")
	var kinds []string
	for _, e := range j.List(mostEntries, slog.LevelInfo, 0) {
		if text := fmt.Sprint(e.Message, e.Attributes); !strings.HasPrefix(text, "closing") && !strings.Contains(text, "{container loud}") {
			kinds = append(kinds, text)
		}
	}
	if want := "[a process ended[] container output[{container quiet} {line loaded}] goes on[]]"; fmt.Sprint(kinds) !=
		want {
		t.Errorf("beside the flood are %v, expected %v", kinds, want)
	}
}
