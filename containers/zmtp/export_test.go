package zmtp

// CheckGreeting, CheckReady and ParseHeader read the first bytes of an unknown peer.
var (
	CheckGreeting = checkGreeting
	CheckReady    = checkReady
)
