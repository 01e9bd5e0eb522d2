#include "lib/base/folder.h"

#include <fstream>

#include <doctest/doctest.h>

#include "tests/support/folder.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

std::string making_error(const fs::path& folder) {
  try {
    const MadeFolder made(folder);
  } catch (const InputError& error) {
    return error.what();
  }
  return "made";
}

TEST_CASE("where nothing is, it says why") {
  const test::Folder folder;
  const fs::path link = folder.path() / "link.png";
  fs::create_symlink("nowhere.png", link);
  CHECK(why_missing(link) == "is a link to nowhere.png, which is not there");
  CHECK(why_missing(folder.path() / "a.png") == "no such file");
  CHECK(why_missing(folder.path() / "a.png", "is missing") == "is missing");
  CHECK(why_missing("https://example.org/a.png") ==
        "is an address; expected a path, nothing is downloaded");
  CHECK(why_missing("a://b") == "is an address; expected a path, nothing is downloaded");
  for (const char* no_address : {"://a", "a b://c", "dir/a://b"})
    CHECK(why_missing(no_address) == "no such file");
}

TEST_CASE("a made folder goes again, with those above it, where it stays empty") {
  const test::Folder folder;
  const fs::path inner = folder.path() / "q/../a/b/";
  {
    const MadeFolder made(inner);
    CHECK(fs::is_directory(folder.path() / "a/b"));
  }
  CHECK(fs::is_empty(folder.path()));
  {
    const MadeFolder made(inner);
    std::ofstream(inner / "file") << "x";
  }
  CHECK(fs::exists(folder.path() / "a/b/file"));
  CHECK(!fs::exists(folder.path() / "q"));
  { const MadeFolder there(folder.path() / "a"); }
  CHECK(fs::exists(folder.path() / "a/b/file"));
}

TEST_CASE("a folder that cannot be made leaves nothing") {
  const test::Folder folder;
  const auto path = [&](const char* name) { return (folder.path() / name).string(); };
  std::ofstream(path("file")) << "x";
  fs::create_symlink("nowhere", path("link"));
  CHECK(making_error(path("file")) == path("file") + ": cannot be made: is a file");
  CHECK(making_error(path("link")) ==
        path("link") + ": cannot be made: is a link to nowhere, which is not there");
  CHECK(making_error(path("new/../file/inner")) ==
        path("new/../file/inner") + ": cannot be made: " + path("new/../file") + " is a file");
  CHECK(!fs::exists(path("new")));
}

}  // namespace
}  // namespace diptych
