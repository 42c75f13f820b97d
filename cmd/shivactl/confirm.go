package main

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
)

// confirm asks the user whether to delete what, which has a %s for each of args. Without a terminal
// it requires --yes: a script that deletes should do so on purpose.
func (c *cli) confirm(what string, args []string) error {
	if c.yes {
		return nil
	}
	quoted := make([]any, len(args))
	for i, arg := range args {
		quoted[i] = fmt.Sprintf("%q", arg)
	}
	what = fmt.Sprintf(what, quoted...) + " at " + c.admin
	file, ok := c.stdin.(*os.File)
	if ok {
		_, _, ok = terminalSize(file)
	}
	if !ok {
		return &failure{"usage", fmt.Sprintf("expected --yes to delete %s, as there is no terminal to ask at", what),
			"--yes does it without asking", exitUsage}
	}
	fmt.Fprintf(c.stderr, "delete %s? [y/N] ", what)
	answer := make(chan string, 1)
	// When the user interrupts, this goroutine is left behind, reading: the process ends.
	go func() {
		line, _ := bufio.NewReader(file).ReadString('\n')
		answer <- line
	}()
	select {
	case line := <-answer:
		if slices.Contains([]string{"y", "yes"}, strings.ToLower(strings.TrimSpace(line))) {
			return nil
		}
	case <-c.ctx.Done():
		fmt.Fprintln(c.stderr)
	}
	return &failure{"canceled", "nothing was deleted", "", exitRefused}
}
