// Package secure has what the listeners of all doors share about TLS: addresses that begin with
// "tls:", the files of certificates and what is wrong with them, and what of a connection is known
// when its handshake is done.
package secure
