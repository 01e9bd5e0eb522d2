// The torch wheel has Gloo, but not its headers, which ProcessGroupGloo.hpp includes. The files of
// this folder declare what that header alone names (pytorch/gloo, the same paths); nothing here is
// called.
#pragma once
