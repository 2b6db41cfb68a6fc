export interface Order {
  seat: number;
  buyer: string;
}
