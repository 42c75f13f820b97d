// Package secure is the TLS that the listeners of all doors share: addresses that begin with
// "tls:", loading and checking of certificate files, and the verified certificate of a peer.
package secure
