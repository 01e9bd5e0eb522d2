// Files made to hurt: each must end in one line that names the file and the key fact.
#include <limits>

#include "lib/tensor/pth.h"
#include "tests/tensor/pth_support.h"

namespace diptych {
namespace {

using pth::dict;
using pth::Part;
using pth::Record;
using pth::tensor;
using pth::text;

std::string open_error(std::string_view bytes) {
  const test::Folder folder;
  const auto path = folder / "bad.pth";
  write_file(path, bytes);
  const std::string message = input_error([&] { PthFile::open(path); });
  check_contains(message, path.string() + ": ");
  CHECK(message.find('\n') == std::string::npos);
  CHECK(message.size() < 1000);
  return message;
}

void check_pickle(std::string_view pickle, std::string_view fact) {
  CAPTURE(pickle.substr(0, 200));
  check_contains(open_error(pth::file(pickle)), fact);
}

void check_zip(const std::vector<Record>& records, std::string_view fact) {
  check_contains(open_error(pth::zip(records)), fact);
}

void check_part(const Part& part, std::string_view fact) {
  check_pickle(dict(text("t") + tensor(part)), fact);
}

std::string replaced(std::string bytes, std::size_t position, std::string_view with) {
  return bytes.replace(position, with.size(), with);
}

const std::string kGood = pth::file(dict(text("t") + tensor()));

TEST_CASE("hostile pth: files that are no archives, and archives cut short") {
  for (const char* bytes : {"", "PK", "\x80\x02}.", "PK\5\6"})
    check_contains(open_error(bytes),
                   "is not a zip archive, as torch.save writes since PyTorch 1.6");
  for (std::size_t size = 0; size < kGood.size(); ++size) open_error(kGood.substr(0, size));
  const std::string zip64 = pth::zip({{"a/data.pkl", dict("")}}, true);
  for (std::size_t size = 0; size < zip64.size(); ++size) open_error(zip64.substr(0, size));
  open_error(kGood.substr(1));
  open_error("x" + kGood);
}

TEST_CASE("hostile pth: directories that lie") {
  const std::size_t end = kGood.size() - 22;
  check_contains(open_error(replaced(kGood, end + 16, "\xFF\xFF\xFF\xFF")),
                 "the directory of the zip archive is said to lie at byte 4294967295 with");
  check_contains(open_error(replaced(kGood, end + 12, "\xFF\xFF\xFF\x7F")), "must end by byte");
  check_contains(open_error(replaced(kGood, end + 10, "\xFF\xFF")), "has no entry at byte");
  check_contains(open_error(replaced(kGood, end + 10, "\1")), "holds more than its 1 entries");
  const std::string zip64 = pth::zip({{"a/data.pkl", dict("")}}, true);
  const std::size_t locator = zip64.size() - 22 - 20, record = locator - 56;
  check_contains(open_error(replaced(zip64, locator + 8, std::string(8, '\xFF'))),
                 "has no zip64 end record at byte 18446744073709551615");
  for (const std::size_t field : {32, 40, 48}) {  // entries, bytes and place of the directory
    open_error(replaced(zip64, record + field, std::string(8, '\xFF')));
    open_error(replaced(zip64, record + field, std::string(7, '\xFF') + "\x7F"));
  }
  const std::size_t entry = kGood.find("PK\1\2");
  check_contains(open_error(replaced(kGood, entry + 28, "\xFF\xFF")), "ends within its entry");
  check_contains(open_error(replaced(kGood, entry + 42, "\xFF\xFF\xFF\xFF")),
                 "the record \"a/data.pkl\" is not at byte 4294967295");
  check_contains(open_error(replaced(kGood, entry + 42, "\1")), "is not at byte 1, where");
  check_contains(open_error(replaced(kGood, entry + 20, "\xFF\xFF\xFF\x7F\xFF\xFF\xFF\x7F")),
                 "has 2147483647 bytes from byte");
  check_contains(open_error(replaced(kGood, kGood.find("a/data.pkl"), "b")),
                 "another record is at byte 0, where the directory has \"a/data.pkl\"");
  check_contains(open_error(replaced(kGood, 26, "\xFF\xFF")), "another record is at byte 0");
}

TEST_CASE("hostile pth: records") {
  const std::string good = dict(text("t") + tensor());
  const Record pickle = {"a/data.pkl", good}, storage = {"a/data/0", pth::kSixFloats};
  check_zip({pickle, pickle}, "the record \"a/data.pkl\" appears twice");
  check_zip({pickle, {"b/data.pkl", good}, storage},
            "file in archive is not in a subdirectory a/: b/data.pkl");
  check_zip({storage}, "holds no data.pkl: not an archive of torch.save");
  check_zip({{"data.pkl", good}}, "is not in a subdirectory: data.pkl");
  check_zip({{"/data.pkl", good}}, "tensor \"t\" is in storage \"0\", which the file lacks");
  check_zip({{"a/b/data.pkl", good}}, "holds no data.pkl");
  check_zip({{"a/data.pkl", good, 8}, storage},
            "the record \"a/data.pkl\" is compressed (method 8");
  check_zip({pickle, {"a/data/0", pth::kSixFloats, 8}}, "\"a/data/0\" is compressed");
  check_zip({pickle, {"a/data/0", pth::kSixFloats, 0, 0, 1}}, "24 of 25 bytes), expected a stored");
  check_zip({pickle, {"a/data/0", pth::kSixFloats, 0, 1}}, "\"a/data/0\" is encrypted");
  check_zip({pickle}, "tensor \"t\" is in storage \"0\", which the file lacks");
  check_zip({pickle, {"b/data/0", pth::kSixFloats}}, "is not in a subdirectory a/: b/data/0");
  check_zip({pickle, {"a/data/x", "1"}, {"a/data/X", "2"}}, "but for their case");
  check_zip({pickle, storage, {"a/version", "x"}}, "is not an archive of torch.save: ");
  check_zip({pickle, storage, {"a/version", "99"}}, "is not an archive of torch.save: ");
  check_zip({pickle, storage, {"a/version", "3\n", 8}}, "\"a/version\" is compressed");
  // A directory entry, whose stated size libtorch would take without looking.
  check_zip({pickle, storage, {"a/version", "3\n", 0, 0, 1U << 30U}}, "expected a stored one");
  check_zip({pickle, storage, {"a/byteorder", "big"}}, "its byte order is \"big\", expected");
  for (const std::size_t size : {0, 1, 23, 25, 28}) {
    check_zip({pickle, {"a/data/0", std::string(size, 'x')}},
              fmt::format("holds {} bytes, expected 6 elements of 4", size));
  }
}

TEST_CASE("hostile pth: pickles that ask for code") {
  check_pickle(
      "\x80\2cos\nsystem\n" + text("true") + "\x85R.",
      "data.pkl, byte 2: it asks for \"system\" of the Python module \"os\"; only a dict of "
      "tensors is read, nothing is run");
  check_pickle("\x80\2cbuiltins\neval\n" + text("1") + "\x85R.", "it asks for \"eval\" of the");
  check_pickle("\x80\2ctorch\nload\n)R.", "\"load\" of the Python module \"torch\"");
  check_pickle("\x80\2c__torch__\nM\n)\x81.", "\"M\" of the Python module \"__torch__\"");
  check_pickle("\x80\2ctorch._utils\n_rebuild_tensor_v3\n)R.", "\"_rebuild_tensor_v3\"");
  check_pickle("\x80\2c\n\n.", "\"\" of the Python module \"\"");
  check_pickle("\x80\2(ios\nsystem\n.", "opcode 0x69, which the pickle of a state dict does not");
  check_pickle("\x80\2\x93.", "opcode 0x93");     // STACK_GLOBAL
  check_pickle("\x80\2K\1\x81.", "opcode 0x81");  // NEWOBJ
  check_pickle("\x80\2\x82\1.", "opcode 0x82");   // EXT1
}

TEST_CASE("hostile pth: pickles that are broken") {
  for (const char* pickle : {"", "\x80", "}.", "\x80\3}.", "\x80\4\x95"}) {
    CAPTURE(pickle);
    open_error(pth::file(pickle));
  }
  check_pickle("\x80\3}.", "it is not a pickle of protocol 2");
  check_pickle("\x80\2", "byte 2: it ends too early: truncated?");
  check_pickle("\x80\2.", "a value is missing");
  check_pickle("\x80\2N.", "None is saved, expected a dict");
  check_pickle("\x80\2}}.", "more than one value is saved");
  check_pickle("\x80\2}(.", "a value is missing");
  check_pickle("\x80\2}u.", "a mark is missing");
  check_pickle("\x80\2t.", "a mark is missing");
  check_pickle("\x80\2NN(\x86.", "a value is missing");
  check_pickle("\x80\2}(Nu.", "a key has no value");
  check_pickle("\x80\2N(u.", "what gets items is None, expected a dict");
  check_pickle("\x80\2NNs.", "a value is missing");
  check_pickle("\x80\2NNNs.", "what gets items is None");
  check_pickle("\x80\2h\7.", "a value that was never kept");
  check_pickle("\x80\2q\7.", "a value is missing");
  check_pickle("\x80\2NNb.", "what has attributes is None, expected a dict");
  check_pickle("\x80\2N)R.", "what is called is None, expected a function");
  check_pickle("\x80\2ccollections\nOrderedDict\nNR.", "what a function gets is None");
  check_pickle("\x80\2ccollections\nOrderedDict\nN\x85R.", "an OrderedDict is made of 1 values");
  check_pickle("\x80\2NQ.", "the id of a storage is None, expected a tuple");
  check_pickle("\x80\2)Q.", "the id of a storage has 0 values");
  check_pickle("\x80\2(NNNNNtQ.", "its kind is None, expected a string");
  check_pickle("\x80\2\x8a\x09.", "a number of 9 bytes");
  check_pickle("\x80\2ctorch._utils\n_rebuild_tensor_v2\n)R.", "made of 0 values, expected 6 or 7");
  check_pickle("\x80\2ctorch._utils\n_rebuild_tensor_v2\n(NNNNNNtR.",
               "what holds a tensor is None, expected a storage");
  check_pickle("\x80\2ctorch._utils\n_rebuild_parameter\nNNN\x87R.", "a parameter is None");
  check_pickle("\x80\2c" + std::string(100'000, 'a'), "it ends too early");
}

TEST_CASE("hostile pth: pickles that would take memory, time or the stack") {
  check_pickle("\x80\2X\xff\xff\xff\xff" + std::string("abc."), "it ends too early: truncated?");
  check_pickle("\x80\2Nr\xff\xff\xff\xff.", "None is saved");  // a list of 4 G places in libtorch
  check_pickle("\x80\2N" + std::string(2'000'000, '\x85') + ".", "tuples are nested deeper than");
  check_pickle("\x80\2" + std::string(2'000'000, 'N') + ".", "more than 65536 values wait");
  check_pickle("\x80\2" + std::string(2'000'000, '(') + ".", "more than 65536 marks");
  check_pickle("\x80\2" + std::string(2'000'000, '}') + ".", "more than 65536 values wait");
  check_pickle("\x80\2}q" + std::string("\0(", 2) + text("a") + std::string("h\0u.", 4),
               "\"a\" is a dict, expected a tensor");  // itself
  std::string deep = "\x80\2";
  for (int i = 0; i < 60'000; ++i) deep += "}K\1";
  check_pickle(deep + std::string(59'999, 's') + ".", "more than 65536 values wait");
  // Tuples that hold each other twice: 2^N values for who copies them.
  std::string doubling = "\x80\2)";
  for (int i = 0; i < 100; ++i) doubling += std::string("q\0h\0\x86", 5);
  check_pickle(doubling + ".", "tuples are nested deeper than 4");
  check_pickle("\x80\2}." + std::string(std::size_t{17} << 20, ' '), "more than 16777216");
}

TEST_CASE("hostile pth: what the dict holds") {
  check_pickle(dict("K\1" + tensor()), "a key of its dict is not a string");
  check_pickle(dict(text("epoch") + "K\1"), "\"epoch\" is a number, expected a tensor");
  check_pickle(dict(text("state_dict") + "}(" + text("t") + tensor() + "u"),
               "\"state_dict\" is a dict, expected a tensor");
  check_pickle(dict(text("t") + tensor() + text("t") + tensor()), "the name \"t\" appears twice");
  check_pickle(dict(text("a\nb\x1b") + "N"), R"("a\x0Ab\x1B" is None)");
  const std::string message = open_error(pth::file(dict(text(std::string(1 << 20, 'n')) + "N")));
  CHECK(message.size() < 400);
}

TEST_CASE("hostile pth: shapes, strides and storages") {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  check_part({.elements = 7}, "storage \"0\" of tensor \"t\" holds 24 bytes, expected 7 elements");
  check_part({.elements = 5}, "holds 24 bytes, expected 5 elements of 4");
  check_part({.elements = -6}, "strides [3, 1], offset 0 in a storage of -6");
  check_part({.elements = kMost}, "expected 9223372036854775807 elements of 4");
  check_part({.elements = kMost / 2 + 4}, "holds 24 bytes, expected");  // times 4 wraps
  check_part({.type = "DoubleStorage"}, "holds 24 bytes, expected 6 elements of 8");
  check_part({.type = "QInt8Storage"}, "asks for \"QInt8Storage\" of the Python module \"torch\"");
  check_part({.storage = "1"}, "is in storage \"1\", which the file lacks");
  check_part({.storage = "../data.pkl"}, "is in storage \"../data.pkl\", which the file lacks");
  check_part({.offset = 1}, "reaches from element 1 beyond its storage of 6");
  check_part({.offset = -1}, "offset -1 in a storage of 6");
  check_part({.offset = kMost}, "reaches from element 9223372036854775807 beyond");
  check_part({.shape = {7}, .strides = {1}}, "of shape [7] reaches from element 0 beyond");
  check_part({.shape = {-2, -3}}, "has shape [-2, -3]");
  check_part({.shape = {kMost, 2}, .strides = {2, 1}}, "overflows 63 bits");
  check_part({.shape = {0, kMost}, .strides = {0, 1}}, "overflows 63 bits");
  check_part({.shape = {1 << 30, 1 << 30}, .strides = {1 << 30, 1}}, "reaches from element 0");
  check_part({.strides = {1, 2}},
             "of shape [2, 3] has the strides [1, 2], expected contiguous ones");
  check_part({.strides = {0, 0}}, "has the strides [0, 0], expected contiguous ones");
  check_part({.strides = {-3, -1}}, "has the strides [-3, -1], expected contiguous ones");
  check_part({.strides = {kMost, 1}}, "expected contiguous ones");
  check_part({.strides = {1}}, "has shape [2, 3], strides [1], offset 0");
  check_part({.shape = std::vector<std::int64_t>(65, 1), .strides = {}}, "more than 64 numbers");
  std::string negated = tensor();
  negated.insert(negated.size() - 2, "}" + text("neg") + "\x88s");
  check_pickle(dict(text("t") + negated), "a tensor is stored negated or conjugated");
}

TEST_CASE("hostile pth: a BOOL byte that is no bool") {
  const test::Folder folder;
  const auto path = folder / "bool.pth";
  write_file(
      path,
      pth::file(dict(text("m") +
                     tensor({.type = "BoolStorage", .elements = 3, .shape = {3}, .strides = {1}})),
                {{"a/data/0", std::string("\1\0\2", 3)}}));
  const auto file = PthFile::open(path);
  check_contains(input_error([&] { file.view("m"); }),
                 "BOOL tensor \"m\" holds the byte 2, expected 0 or 1");
}

}  // namespace
}  // namespace diptych
