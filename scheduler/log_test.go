package scheduler_test

import (
	"io"
	"log/slog"
)

func testLog(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }
