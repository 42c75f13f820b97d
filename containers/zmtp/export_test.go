package zmtp

// CheckGreeting, CheckReady and ParseHeader are what a stranger's first bytes go through.
var (
	CheckGreeting = checkGreeting
	CheckReady    = checkReady
)
