// Package unit has the systemd unit of shivad, which packages install and shivactl init adapts.
package unit

import _ "embed"

// Text is the unit of a server that packages have installed.
//
//go:embed shivad.service
var Text string
