// Package identity knows who may do what. An identity is declared in the configuration, with the
// hashes of its tokens, patterns of its certificates and its rights; a client or a container shows
// a token, or a certificate that its listener has verified, and is that identity for as long as the
// one or the other is declared.
//
// Doors find out who asks (Registry.Who) and pass it on. Whether it may is decided once for each
// kind of action, by Identity.May: in the gate for requests and for what is told of models, in
// predict for loading, in admin for what operators see and change, in fleet for containers that
// register.
//
// A nil *Identity is this program itself, or anybody at a server that declares no identities: it
// may do everything. Whoever is refused is nobody, which is an identity without rights, so that a
// caller who overlooks an error gives nothing away.
//
// Tokens are compared by a map from their SHA-256. How long a look-up takes depends on the hash of
// what was shown, of which nobody can choose more than a few bits, and not on the token: a
// comparison in constant time would add nothing, and would be linear in the number of tokens.
//
// A certificate is somebody's if one of its names matches a pattern of exactly one identity. One
// that matches those of two is nobody's, and so is one with a name that two programs could read in
// two ways. Patterns that overlap for certain are a fault of the configuration.
//
// Sources: Redis' ACLs (the user that is there without a password, patterns, SHA-256 of passwords)
// and nats-server's accounts (rights by pattern, reloaded under open connections) and its
// verify_and_map (users by the names in a certificate; one that is no user's is refused).
package identity
