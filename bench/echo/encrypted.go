package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
)

// encrypted writes back over TLS what it decrypts, a record at a time, with a goroutine for each
// connection, as a plain crypto/tls program does. It writes records of full size from the first on,
// as shivad does.
func encrypted(listen, cert, key string, stop <-chan os.Signal) error {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return err
	}
	l, err := tls.Listen("tcp", listen, &tls.Config{
		Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13, DynamicRecordSizingDisabled: true,
	})
	if err != nil {
		return err
	}
	fmt.Println(listen)
	go func() { // ends with the process
		<-stop
		l.Close()
	}()
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		go func() { // until the client hangs up
			defer c.Close()
			_, _ = io.Copy(c, c) // the client sees how it ended
		}()
	}
}
