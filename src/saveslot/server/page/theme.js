// Before the first paint: the theme that was chosen here. Without one the system's counts.
document.documentElement.dataset.theme = localStorage.getItem("saveslot.theme") ?? "";
