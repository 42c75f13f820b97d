package main

import (
	"fmt"
	"time"
)

// head and rows are the table of a size: each way to each server.
func head(s *size) []string {
	return []string{s.name, "frames/s", "p50 ms", "p99 ms", "alone, p50 ms", "CPU ms/frame"}
}

func (r results) rows(s *size) (rows [][]string) {
	for _, w := range ways {
		for _, k := range kinds {
			m, p99, ok := r.of(many(k, w, s))
			if !ok {
				continue
			}
			one, _, _ := r.of(alone(k, w, s))
			rows = append(rows,
				[]string{w.name + ", " + k.label, perSecond(m.rate), milliseconds(m.p50), milliseconds(p99),
					milliseconds(one.p50), milliseconds(m.cpu)})
		}
	}
	return rows
}

func perSecond(rate float64) string {
	if rate < 10 {
		return fmt.Sprintf("%.1f", rate)
	}
	return fmt.Sprintf("%.0f", rate)
}

func milliseconds(d time.Duration) string {
	if d >= 100*time.Millisecond {
		return fmt.Sprintf("%.0f", d.Seconds()*1e3)
	}
	return fmt.Sprintf("%.2f", d.Seconds()*1e3)
}
