// Command alarm is the reference for the lateness of shivad's deadlines: it echoes each request
// at its deadline, by a sleeping goroutine and a write, and does nothing else. Its lateness is
// that of the machine and the runtime.
//
//	alarm [-listen 127.0.0.1:7008]
//
// One request may be in flight on a connection. It prints its address and serves until SIGTERM or
// SIGINT.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"time"

	"github.com/shivad/shivad/shiva"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:7008", "address to listen on")
	flag.Parse()
	log.SetFlags(0)
	log.SetPrefix("alarm: ")
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(l.Addr())
	for {
		c, err := l.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go func() { // ends with its connection
			defer c.Close()
			if err := serve(c); err != nil {
				log.Print(err)
			}
		}()
	}
}

// serve answers the requests of one connection until the client closes it.
func serve(c net.Conn) error {
	d := shiva.NewDecoder(shiva.DecoderConfig{})
	var frame []byte
	p := make([]byte, 4096)
	for {
		n, err := c.Read(p)
		if err != nil {
			return nil // the client has hung up
		}
		arrived := time.Now()
		frame = append(frame, p[:n]...)
		used, m, err := d.Push(p[:n])
		if err != nil {
			return err
		}
		if m == nil {
			continue
		}
		if used != n {
			return fmt.Errorf("%v sent more than one request at a time", c.RemoteAddr())
		}
		var q struct {
			TimeoutMS float64 `json:"timeout_ms"`
		}
		err = json.Unmarshal(m.Metadata, &q)
		m.Release()
		if err != nil {
			return err
		}
		time.Sleep(time.Until(arrived.Add(time.Duration(q.TimeoutMS * 1e6))))
		if _, err := c.Write(frame); err != nil {
			return err
		}
		frame = frame[:0]
	}
}
