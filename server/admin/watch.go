package admin

// A WatchedApp is an application with what its policy has learned for requests without a user or,
// if there were none, for the first of its users.
type WatchedApp struct {
	App
	Learned *LearnedUser `json:"learned"` // null: nothing yet
}

// A WatchedAppList is what a watch shows of all applications.
type WatchedAppList struct {
	Apps []WatchedApp `json:"apps"`
}
