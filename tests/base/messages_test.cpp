#include "lib/base/messages.h"

#include <string>

#include <doctest/doctest.h>

namespace diptych {

TEST_CASE("printable: one line, whatever the text") {
  CHECK(printable("gr\xC3\xBCn a") == "gr\xC3\xBCn a");
  CHECK(printable("a\nb\tc\x7F") == "a\\x0Ab\\x09c\\x7F");
  CHECK(printable("\xC2\x9B[2J\xE2\x80\xA8") == "\\xC2\\x9B[2J\\xE2\\x80\\xA8");
  CHECK(printable("\xFF\xC3") == "\\xFF\\xC3");
  CHECK(printable(std::string_view("\0x", 2)) == "\\x00x");
  CHECK(printable("a\n\x1b\tb", "\n\t") == "a\n\\x1B\tb");
  CHECK(printable("").empty());
}

TEST_CASE("counted: one thing, several things") {
  CHECK(counted(0, "problem") == "0 problems");
  CHECK(counted(1, "problem") == "1 problem");
  CHECK(counted(2, "problem") == "2 problems");
  CHECK(counted(1, "text entry", "text entries") == "1 text entry");
  CHECK(counted(3, "text entry", "text entries") == "3 text entries");
}

TEST_CASE("edit distance: insertions, deletions, changes, and a swap as one") {
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("abc", "") == 3);
  CHECK(edit_distance("steps", "steps") == 0);
  CHECK(edit_distance("stpes", "steps") == 1);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("ca", "abc") == 3);  // no edits inside a swap
}

}  // namespace diptych
