"""Function bodies of the vendor's operators, in standard operators that every runtime has."""
