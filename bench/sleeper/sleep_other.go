//go:build !linux

package main

import "time"

func sleepUntil(t time.Time) error {
	time.Sleep(time.Until(t))
	return nil
}
