// Package identity is authentication and authorization. An identity is declared in the
// configuration, with the hashes of its tokens, patterns of its certificates, and its rights. A
// client or a container that presents a declared token, or a verified certificate that matches, is
// that identity for as long as the token or the pattern is declared.
//
// Doors authenticate (Registry.Who) and pass the identity on. Each kind of action is authorized in
// one place, by Identity.May: requests and descriptions of models in gate, loading in predict, what
// operators see and change in admin, and containers that register in fleet.
//
// A nil *Identity is the embedding program, or any client of a server that declares no identities:
// it may do everything. A refused client gets the identity "nobody", which has no rights, so that
// code that overlooks the error grants nothing.
//
// Tokens are looked up in a map by their SHA-256. The time of a look-up depends not on the token
// but on the hash of the presented text, of which a client can choose only a few bits. A comparison
// in constant time would add nothing, and would be linear in the number of tokens.
//
// A certificate belongs to an identity if its names match patterns of that identity alone. A
// certificate that matches two identities belongs to nobody, and so does one with a name that
// programs could parse differently. Patterns that certainly overlap are a fault of the
// configuration.
//
// Sources: Redis' ACLs (the default user without a password, patterns, SHA-256 of passwords) and
// nats-server's accounts (rights by pattern, reloaded under open connections) and its
// verify_and_map (users by the names in a certificate; a certificate of no user is refused).
package identity
