// Headers made to hurt: each must end in one line that names the file and the key fact.
#include "lib/tensor/safetensors.h"
#include "tests/tensor/support.h"

namespace diptych {
namespace {

std::string open_error(std::string_view bytes) {
  const test::Folder folder;
  const auto path = folder / "bad.safetensors";
  write_file(path, bytes);
  const std::string message = input_error([&] { SafetensorsFile::open(path); });
  check_contains(message, path.string() + ": ");
  CHECK(message.find('\n') == std::string::npos);
  return message;
}

void check_header(std::string_view header, std::string_view data, std::string_view fact) {
  CAPTURE(header.substr(0, 200));
  check_contains(open_error(file_bytes(header, data)), fact);
}

TEST_CASE("hostile safetensors: files that are no files") {
  const test::Folder folder;
  const auto open = [](const std::filesystem::path& path) {
    return input_error([&] { SafetensorsFile::open(path); });
  };
  check_contains(open(folder / "absent"), "cannot be read: No such file");
  check_contains(open(folder.path()), "is a folder, expected a file");
  check_contains(open("/dev/zero"), "is not a regular file");
}

TEST_CASE("hostile safetensors: lengths and truncation") {
  check_contains(open_error(""), "holds 0 bytes, too short");
  check_contains(open_error("1234567"), "holds 7 bytes, too short");
  check_contains(open_error(length_field(~std::uint64_t{0}) + "{}"),
                 "header length 18446744073709551615 is over 100000000");
  check_contains(open_error(length_field(100'000'001) + "{}"), "header length 100000001 is over");
  check_contains(open_error(length_field(3) + "{}"),
                 "header length 3 reaches beyond the file, 2 bytes follow");
  check_contains(open_error(length_field(0)), "expected it to begin with '{'");
  const std::string good =
      file_bytes(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "12345678");
  for (std::size_t size = 0; size < good.size(); ++size) open_error(good.substr(0, size));
  check_contains(open_error(good.substr(0, good.size() - 1)),
                 R"(tensor "a" ends at byte 8 of the data, but the file holds 7: truncated?)");
}

TEST_CASE("hostile safetensors: not JSON, or not the JSON of a header") {
  check_header("<html>", "", "the header is not JSON, expected it to begin with '{'");
  check_header("\xEF\xBB\xBF{}", "", "the header is not JSON");
  check_header("{", "", "not valid JSON at its byte");
  check_header("{}x", "", "not valid JSON at its byte 3");
  check_header(std::string_view("{}\0{}", 5), "", "not valid JSON at its byte 3");
  check_header("{\"\xFF\":1}", "", "not valid JSON at its byte");
  check_header("{ // comment", "", "not valid JSON");
  check_header(R"({"a":1})", "", R"("a" holds the number 1, expected an object)");
  check_header(R"({"a":-1})", "", R"("a" holds the number -1, expected an object)");
  check_header(R"({"a":null})", "", R"("a" holds null, expected an object)");
  check_header(R"({"a":[]})", "", R"("a" holds an array, expected an object)");
  check_header(R"({"a":"F32"})", "", R"("a" holds the string "F32", expected an object)");
  check_header(R"({"a":{"dtype":true}})", "",
               R"(dtype of tensor "a" holds a boolean, expected a string)");
  check_header(R"({"a":{"dtype":["F32"]}})", "",
               "dtype of tensor \"a\" holds an array, expected a string");
  check_header(R"({"a":{"dtype":{"x":1}}})", "",
               "dtype of tensor \"a\" holds an object, expected a string");
  check_header(R"({"a":{"shape":"2"}})", "",
               "shape of tensor \"a\" holds the string \"2\", expected an array");
  check_header(R"({"a":{"shape":[[2]]}})", "",
               "shape of tensor \"a\" holds an array, expected an integer");
  check_header(R"({"a":{"shape":["dtype"]}})", "", "shape of tensor \"a\" holds the string");
  check_header(R"({"a":{"size":[2]}})", "", "tensor \"a\" has the unknown key \"size\"");
  check_header("{\"a\\n\\u0000\\u001b\":1}", "", R"("a\x0A\x00\x1B" holds the number 1)");
}

TEST_CASE("hostile safetensors: deep nesting ends at once") {
  std::string deep = R"({"a":)";
  for (int i = 0; i < 1'000'000; ++i) deep += "[";
  check_header(deep, "", "\"a\" holds an array, expected an object");
  deep.clear();
  for (int i = 0; i < 200'000; ++i) deep += R"({"a":)";
  check_header(deep, "", "tensor \"a\" has the unknown key \"a\"");
}

TEST_CASE("hostile safetensors: names") {
  const std::string entry = R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  check_header(fmt::format(R"({{"a":{0},"a":{0}}})", entry), "x", R"(the name "a" appears twice)");
  check_header(fmt::format(R"({{"a":{0},"\u0061":{0}}})", entry), "x",
               R"(the name "a" appears twice)");
  check_header(R"({"__metadata__":{},"__metadata__":{}})", "",
               R"(the name "__metadata__" appears twice)");
  check_header(R"({"__metadata__":{"k":"1","k":"2"}})", "", R"(metadata key "k" appears twice)");
  check_header(R"({"__metadata__":{"k":1}})", "",
               R"(metadata key "k" holds the number 1, expected a string)");
  check_header(R"({"__metadata__":{"k":{}}})", "",
               R"(metadata key "k" holds an object, expected a string)");
  check_header(R"({"__metadata__":"x"})", "", R"("__metadata__" holds the string "x")");
  check_header(R"({"a":{"dtype":"U8","dtype":"U8"}})", "", R"(dtype of tensor "a" appears twice)");
  check_header(R"({"a":{"shape":[],"shape":[]}})", "", R"(shape of tensor "a" appears twice)");
  const std::string message =
      open_error(file_bytes(fmt::format(R"({{"{}":1}})", std::string(1 << 20, 'n')), ""));
  CHECK(message.size() < 400);
}

TEST_CASE("hostile safetensors: dtypes, shapes and missing keys") {
  const auto tensor = [](std::string_view dtype, std::string_view shape, std::string_view offsets) {
    return fmt::format(R"({{"t":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})", dtype, shape,
                       offsets);
  };
  check_header(tensor("F31", "[1]", "[0,4]"), "1234", R"(tensor "t" has the unknown dtype "F31")");
  check_header(tensor("f32", "[1]", "[0,4]"), "1234", R"(unknown dtype "f32")");
  check_header(tensor("F32", "[-1]", "[0,4]"), "1234",
               R"(shape of tensor "t" holds the negative number -1)");
  check_header(tensor("F32", "[1.0]", "[0,4]"), "1234",
               R"(holds the number "1.0", expected an integer)");
  check_header(tensor("F32", "[1e99]", "[0,4]"), "1234",
               R"(holds the number "1e99", expected an integer)");
  check_header(tensor("F32", "[9223372036854775808]", "[0,4]"), "1234",
               "holds 9223372036854775808, more than 63 bits");
  check_header(tensor("F32", "[99999999999999999999]", "[0,4]"), "1234", "expected an integer");
  check_header(tensor("F32", "[4294967296,4294967296]", "[0,4]"), "1234",
               "[4294967296, 4294967296] of tensor \"t\" overflows");
  check_header(tensor("F32", "[4611686018427387904,2,2]", "[0,0]"), "", "overflows 63 bits");
  check_header(tensor("F32", "[0,4611686018427387904,4]", "[0,0]"), "", "overflows 63 bits");
  std::string long_shape = "[1";
  for (int i = 0; i < 64; ++i) long_shape += ",1";
  check_header(tensor("F32", long_shape + "]", "[0,4]"), "1234",
               "shape of tensor \"t\" has more than 64 numbers");
  check_header(R"({"t":{"shape":[1],"data_offsets":[0,4]}})", "1234", "tensor \"t\" has no dtype");
  check_header(R"({"t":{"dtype":"F32","data_offsets":[0,4]}})", "1234",
               "tensor \"t\" has no shape");
  check_header(R"({"t":{"dtype":"F32","shape":[1]}})", "1234", "tensor \"t\" has no data_offsets");
  check_header(R"({"t":{}})", "", "tensor \"t\" has no dtype");
  check_header(tensor("F32", "[2]", "[0,4]"), "1234",
               "of dtype F32 and shape [2] needs 8 bytes, its data_offsets are [0, 4]");
  check_header(tensor("F32", "[]", "[0,8]"), "12345678",
               "shape [] needs 4 bytes, its data_offsets are [0, 8]");
}

TEST_CASE("hostile safetensors: offsets") {
  const auto two = [](std::string_view a, std::string_view b) {
    return fmt::format(R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":{}}},)"
                       R"("b":{{"dtype":"U8","shape":[4],"data_offsets":{}}}}})",
                       a, b);
  };
  check_header(
      two("[0,4]", "[2,6]"), "123456",
      "tensor \"b\" begins at byte 2 of the data, overlapping the one that ends at byte 4");
  check_header(two("[0,4]", "[0,4]"), "1234", "overlapping the one that ends at byte 4");
  check_header(two("[0,4]", "[5,9]"), "123456789",
               "tensor \"b\" begins at byte 5 of the data, leaving a hole after byte 4");
  check_header(two("[1,5]", "[5,9]"), "123456789",
               "tensor \"a\" begins at byte 1 of the data, leaving a hole after byte 0");
  check_header(two("[0,4]", "[4,8]"), "123456789",
               "the tensors end at byte 8 of the data, but the file holds 9");
  check_header(two("[0,4]", "[4,8]"), "1234567",
               "tensor \"b\" ends at byte 8 of the data, but the file holds 7");
  check_header(two("[0,4]", "[8,4]"), "12345678", "needs 4 bytes, its data_offsets are [8, 4]");
  check_header(two("[0,4]", "[9223372036854775803,9223372036854775807]"), "12345678",
               "ends at byte 9223372036854775807");
  check_header(two("[-4,0]", "[0,4]"), "1234",
               "data_offsets of tensor \"a\" holds the negative number -4");
  check_header(two("[0]", "[0,4]"), "1234", "data_offsets of tensor \"a\" are not two numbers");
  check_header(two("[0,4,8]", "[0,4]"), "1234",
               "data_offsets of tensor \"a\" has more than 2 numbers");
  check_header("{}", "1", "the tensors end at byte 0 of the data, but the file holds 1");
}

TEST_CASE("safetensors: unusual but valid") {
  const test::Folder folder;
  const auto path = folder / "odd.safetensors";
  // Zero-size tensors anywhere on a border, keys in any order, spaces, escapes, an empty name.
  write_file(path, file_bytes(R"({ "":{"data_offsets":[0,0],"shape":[3,0],"dtype":"F64"},)"
                              R"("\u00e9":{"shape":[],"dtype":"U8","data_offsets":[0,1]},)"
                              R"("z":{"shape":[0],"dtype":"I8","data_offsets":[1,1]}} )",
                              "\x05"));
  const auto file = SafetensorsFile::open(path);
  CHECK(file.view("").sizes() == at::IntArrayRef{3, 0});
  CHECK(file.view("\xC3\xA9").item<int>() == 5);
  CHECK(file.view("z").numel() == 0);
}

TEST_CASE("hostile safetensors: a BOOL byte that is no bool") {
  const test::Folder folder;
  const auto path = folder / "bool.safetensors";
  write_file(path, file_bytes(R"({"m":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})",
                              std::string("\1\0\2", 3)));
  const auto file = SafetensorsFile::open(path);
  check_contains(input_error([&] { file.view("m"); }),
                 "BOOL tensor \"m\" holds the byte 2, expected 0 or 1");
}

}  // namespace
}  // namespace diptych
