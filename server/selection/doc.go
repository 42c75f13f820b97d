// Package selection chooses between several models behind one name, combines what they say, and
// learns from what became of it. A policy is a set of pure functions over a state: the caller
// keeps the state, for one key (application, user), in whatever store it likes.
//
//	        state, random number             state                      state
//	                 │                         │                          │
//	request ──► Policy.Select ─► Plan ─► Policy.Combine ─► Answer   Policy.Feedback ─► new state
//	                              │            │                      ▲      ▲
//	                              │            └── Predictions ───────┘      │
//	                              └── Asks, with probabilities       Outcome: truth or losses
//
// # Policies
//
//	name            parameters (default)            learns              when
//	single          model (the only candidate)      nothing             one model is enough
//	split           weights (equal), salt ("")      nothing             canary, A/B test; a user
//	                                                                    stays with a model
//	shadow          model (the only candidate),     nothing             to watch a candidate on
//	                fraction (1)                                        real requests
//	exp3            gamma (0.05), eta (0.2),        weight, from the    one model per request;
//	                share (0.001), inherit (0.5)    loss of the model   nothing can be assumed of
//	                                                asked               how losses come about
//	exp4            eta (0.2), share (0.001),       weights, from the   all models can be asked;
//	                inherit (0.5),                  losses of all       one is the best at a time,
//	                combination ("vote")            models              which one changes
//	epsilon-greedy  epsilon (0.1), inherit (0.5)    mean loss of the    one model per request; the
//	                                                model asked         best so far, and sometimes
//	                                                                    another
//	thompson        decay (0.995), inherit (0.5)    belief in the       one model per request;
//	                                                model asked         loses the least of the
//	                                                                    three to chance
//	ensemble        combination ("vote"),           weights, from the   all models can be asked,
//	                weights (learned),              losses of all       and their errors are
//	                classes (2), inherit (0.5)      models              independent
//
// single, split and shadow show mean losses, although they learn nothing from them.
//
// Every policy has these as well:
//
//	output ("")   name of the output that is voted on and judged; "" is the first
//	loss          "label" (right or wrong, by rows), "absolute" or "squared" (of numbers); the
//	              default is "label", and with combination "mean" "absolute"
//	scale (1)     the largest difference, a loss of 1, in the unit of the output, for absolute
//	              and squared loss
//	step          least weight of the newest loss in the mean loss of a model: 0 is the mean of
//	              all losses, 0.01 that of about the last 100. The default is 0 for single, split
//	              and shadow, and 0.01 for the others
//
// A weight is that of "name/version", else of the version that this one descends from, else of
// "name", else 0. Models are named likewise by parameter model.
//
// A loss is a number from 0 (as good as can be) to 1, without a unit; a reward r is a loss of
// 1-r. Shares, probabilities and confidence are from 0 to 1. There are no times here: what is
// forgotten is forgotten per feedback.
//
// # Models that come, go and change
//
//	                new model starts with                   new version starts with, for inherit h
//	single, shadow  nothing                                 nothing: its mean loss is its own
//	split           no users, until weights name it         nothing; its predecessor's users stay
//	exp3, exp4      the mean of the others' weights         its predecessor's weight^h times
//	                                                        that mean^(1-h)
//	epsilon-greedy  the mean of the others' mean losses,    its predecessor's mean loss, as the
//	                as one loss                             mean of h times as many losses
//	thompson        no belief                               h of its predecessor's evidence
//	ensemble        as epsilon-greedy                       as epsilon-greedy
//
// The others keep what they have, relative to each other, when a model joins or leaves. What was
// learned of a model that leaves is set aside (State.Aside) and is there when it comes back,
// whether it was linked again, rolled back, or is what another server sees during a rolling
// update: so a version inherits once. A state of another policy stays likewise (State.Others),
// for when the application goes back to that one.
//
// # Rules
//
// Nothing here has a clock, a lock, a goroutine, memory of its own or a source of chance: the
// random number is the caller's, a fresh one for each request. Functions may be called from any
// goroutine. No state that they are given is changed, and equal arguments give equal results. So
// a compare-and-swap around Feedback is all that a store needs to lose none, and a decision that
// was recorded with its random number can be made again.
//
// Tensors given are read and never retained; see Answer for those that come back.
//
// Numbers in a state stay finite, however many feedbacks: weights are logarithms relative
// to the heaviest.
//
// # Policies of your own
//
// Register adds an Algorithm under a name of its own, with its parameters: applications then name
// it like any other, at every door and on the admin door, and its state is stored and shared like
// any other's. The package's example is one.
package selection
