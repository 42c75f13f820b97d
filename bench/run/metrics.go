package main

import (
	"context"
	"fmt"
	"regexp"
	"strconv"

	"github.com/shivad/shivad/bench/internal/metrics"
)

// metrics reads values of the server's metrics, each named with its labels.
func (s *system) metrics(ctx context.Context, names ...string) ([]float64, error) {
	text, err := metrics.Text(ctx, s.profile)
	if err != nil {
		return nil, err
	}
	values := make([]float64, len(names))
	for i, name := range names {
		found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindStringSubmatch(text)
		if found == nil {
			return nil, fmt.Errorf("run: the server's metrics lack %s", name)
		}
		if values[i], err = strconv.ParseFloat(found[1], 64); err != nil {
			return nil, err
		}
	}
	return values, nil
}
