//go:build !linux

package main

import "github.com/spf13/cobra"

// doctorCommand is not for a system on which no server runs.
func (c *cli) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Hidden: true, Short: "find what keeps a server here from serving",
		RunE: func(*cobra.Command, []string) error { return unfit("", "doctor examines machines with Linux alone") },
	}
}
