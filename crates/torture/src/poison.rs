//! Entries that cannot become rows, of every shape that a reader has to survive.

use crate::damage::Fields;

/// No sale has this id.
const NO_SALE: &[u8] = b"987654321";

/// An entry that is an order, but for its sale.
fn order() -> Fields {
    let pairs: [(&[u8], &[u8]); 5] =
        [(b"v", b"1"), (b"s", NO_SALE), (b"u", b"stranger"), (b"b", b"1"), (b"e", b"1")];
    pairs.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
}

fn without(name: &[u8]) -> Fields {
    order().into_iter().filter(|(field, _)| field != name).collect()
}

fn with(name: &[u8], value: &[u8]) -> Fields {
    let mut fields = without(name);
    fields.push((name.to_vec(), value.to_vec()));
    fields
}

fn twice(name: &[u8]) -> Fields {
    let mut fields = order();
    fields.push((name.to_vec(), b"1".to_vec()));
    fields
}

fn packed(order: &[u8]) -> Fields {
    vec![(b"o".to_vec(), order.to_vec())]
}

/// One of each shape.
pub(crate) fn shapes() -> Vec<Fields> {
    vec![
        vec![(b"hello".to_vec(), b"world".to_vec())],
        vec![(vec![0xff, 0x00], vec![0xfe, b'\n'])],
        without(b"v"),
        with(b"v", b"2"),
        without(b"s"),
        with(b"s", b"nine"),
        without(b"u"),
        with(b"u", b""),
        with(b"u", b"\xc3\x28\xff\x00"),
        with(b"u", b"a\nb"),
        with(b"u", &vec![b'x'; 64 << 10]),
        with(b"b", b"0"),
        with(b"b", b"65536"),
        with(b"e", b"9223372036854775808"),
        with(b"k", b"short"),
        twice(b"v"),
        twice(b"u"),
        packed(b"3:1:1:1::stranger"),
        packed(b"2:1:1:1"),
        packed(b"2:1:1:1::\xc3\x28\xff\x00"),
        // Readable, and of a sale that the database does not have.
        order(),
    ]
}
